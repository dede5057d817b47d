"""Closed form of Mamba-2 layers: projections, a short convolution, and the scan in chunks.

The scan's kernels are those of mamba-ssm (https://github.com/state-spaces/mamba,
mamba_ssm/ops/triton/ssd_combined.py), which transformers and Megatron-Core call. What they read, write and
keep is counted tensor by tensor. Their arithmetic would take less time than their traffic, 25 to 35 FLOPs a
byte at the published sizes, where accelerators have 100 and more in short formats; what the kernels take of
both is measured (``cost.compute``).

Sources: Dao and Gu, arXiv:2405.21060, section 6 (chunks) and 8 (tensor parallelism).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.model import Operator, OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.layers import (
    FP32_BYTES,
    Part,
    Setting,
    elementwise,
    joined,
    matmul,
    summands,
    undivided,
)

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture, StateSpace

_FP32 = FP32_BYTES
#: lengths of steps, states of chunks, states passed on, products of C and B, and the output
_KERNELS = 5
#: parameters of a head: its decay, the bias of its steps, and how much of its input it adds
_OF_HEAD = 3


def state_space(setting: Setting) -> Part:
    """Return one Mamba-2 layer without the norm before it.

    Megatron-Core divides heads and groups over tp, weights with them. Auto_parallelize leaves the layer
    whole on each rank: parameters that no projection has stand beside what it would divide.
    """
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    s = _of(a)
    part = joined(
        _projected(setting, s),
        Part(
            operators=(_convolution(setting, s), *_scan(setting, s)),
            saved=Saved(tensor=_kept(setting, s)),
            # what the scan is computed from again comes first
            outputs=(Saved(tensor=b * s.projected * tokens), summands(setting)),
            products=Saved(tensor=b * s.projected * tokens),
        ),
    )
    return part if divides_scans(setting) else undivided(part)


def divides_scans(setting: Setting) -> bool:
    """Return whether tp divides heads and groups."""
    return setting.kernels.fused


def _of(a: Architecture) -> StateSpace:
    if a.state_space is None:
        raise ValueError("the architecture has no state-space layers")
    return a.state_space


def _projected(setting: Setting, s: StateSpace) -> Part:
    """Return both projections, the gated norm between scan and output, and all parameters."""
    a, tokens = setting.architecture, setting.tokens
    small = s.convolved * (s.window + s.conv_bias) + _OF_HEAD * s.heads + s.width
    inner = a.hidden * s.projected + (s.projected if s.bias else 0) + small + s.width * a.hidden
    bias = (Parameters(trainable=a.hidden),) if s.bias else ()
    return Part(
        parameters=(Parameters(trainable=inner, split=Split.TENSOR), *bias),
        operators=(
            matmul(tokens, s.projected, a.hidden, "n"),
            elementwise(2 * setting.element * s.width * tokens, Split.TENSOR),
            matmul(tokens, a.hidden, s.width, "k"),
        ),
    )


def _convolution(setting: Setting, s: StateSpace) -> Operator:
    """Return the convolution of each channel by itself: so few products that its traffic counts."""
    channels = s.convolved * setting.tokens
    return Operator(
        kind=OperatorKind.ELEMENTWISE,
        flops=2 * s.window * channels,
        bytes=2 * setting.element * channels,
        split=Split.TENSOR,
        weighted=False,
    )


def _scan(setting: Setting, s: StateSpace) -> tuple[Operator, ...]:
    """Return the scan's kernels, each with a share of what they compute and move.

    FLOPs: inside of a chunk products with the lower half of C B^T, as in causal attention, and a state for
    each chunk, made of its inputs and read by the next one's outputs.

    Bytes: inputs are read for states and for outputs; the output is written with the gate and without.
    States are written in fp32, read and written in short to be passed on, and read once more. C B^T is
    written and read in fp32, one for each group.
    """
    b, tokens = setting.element, setting.tokens
    of_group, in_chunk = s.groups * s.state, s.chunk / 2
    flops = 2 * (in_chunk * (of_group + s.width) + 2 * s.state * s.width)
    states = s.width * s.state / s.chunk
    moved = 5 * b * s.width + (2 * _FP32 + 2 * b) * states
    moved += 4 * b * of_group + 2 * _FP32 * s.groups * s.chunk
    # steps and their sums, in fp32
    moved += (b + 4 * _FP32) * s.heads
    return (
        Operator(
            kind=OperatorKind.SCAN,
            flops=flops * tokens / _KERNELS,
            bytes=moved * tokens / _KERNELS,
            split=Split.TENSOR,
            count=_KERNELS,
            weighted=False,
        ),
    )


def _kept(setting: Setting, s: StateSpace) -> float:
    """Return the bytes for backward: what the first projection gave, and the scan's output.

    Where the norm is a kernel of its own, as Megatron-Core has it, also what that reads and gives; in
    transformers norm and output projection are of the scan's function, which computes them again.
    """
    between = 2 * setting.element * s.width if setting.kernels.fused else 0
    statistics = _FP32 * s.groups
    return (setting.element * (s.projected + s.width) + between + statistics) * setting.tokens


def scan_gradients(setting: Setting, width: int) -> Saved:
    """Return what backward of the scan makes: states again, their gradients, and those of its inputs.

    States and their gradients are in fp32, and in short for the products; C B^T and its gradient in fp32.
    """
    s, b = _of(setting.architecture), setting.element
    states = s.width * s.state / s.chunk
    made = (2 * _FP32 + 2 * b) * states + 2 * _FP32 * s.groups * s.chunk
    made += b * (s.projected + s.convolved + 2 * s.width)
    if not setting.kernels.fused:
        # the output again
        made += b * s.width
    own = made * setting.tokens
    divided = Saved(tensor=own) if divides_scans(setting) else Saved(replicated=own)
    return divided + Saved(sequence=2 * width)
