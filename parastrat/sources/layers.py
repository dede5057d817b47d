"""Closed form of transformer layers: parameters, operators and what backward keeps.

Bytes are those of one sample. ``b`` is the bytes of an activation element; eager kernels compute norms in
fp32 and keep each intermediate, compiled ones keep the inputs of matrix multiplies and of norms and compute
the elementwise rest again, fused ones are Megatron-Core's.

Sources: Korthikanti et al., arXiv:2205.05198, section 4.1 (34 s b h of a fused GPT layer, which the FUSED
form reproduces without dropout's masks); the eager form was derived from Hugging Face's modules and is
checked against tensors that autograd saves (tests/sources/test_saved_tensors.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from parastrat.model import Activations, Operator, OperatorKind, Parameters, Saved, Split
from parastrat.sources.architecture import Norm, QkNorm
from parastrat.stack import Kernels

if TYPE_CHECKING:
    from parastrat.sources.architecture import Architecture

#: fp32 statistics of norms and of flash attention's softmax
_FP32 = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a closed form is evaluated for."""

    architecture: Architecture
    #: tokens of one sample in this stack of layers
    tokens: int
    #: bytes of an activation element
    element: int
    kernels: Kernels
    #: weights are in fp32 and so is the residual stream; products read short copies
    autocast: bool = False

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream."""
        return _FP32 if self.autocast else self.element


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a layer: attention, a feed-forward, a norm."""

    parameters: tuple[Parameters, ...] = ()
    operators: tuple[Operator, ...] = ()
    #: kept for backward without recompute
    saved: Saved = field(default_factory=Saved)
    #: what the ``selective`` policy keeps of it: every second matmul's output, and flash attention's
    selective: Saved = field(default_factory=Saved)
    #: freed when the attention core is computed again
    core: Saved = field(default_factory=Saved)


def joined(*parts: Part) -> Part:
    """Return parts in sequence as one."""
    return Part(
        parameters=tuple(group for part in parts for group in part.parameters),
        operators=tuple(operator for part in parts for operator in part.operators),
        saved=sum((part.saved for part in parts), Saved()),
        selective=sum((part.selective for part in parts), Saved()),
        core=sum((part.core for part in parts), Saved()),
    )


def activations(part: Part, input_bytes: float) -> Activations:
    """Return a block's activations under every policy; a checkpoint keeps the block's input."""
    kept = Saved(sequence=input_bytes)
    without_core = replace(part.saved, tensor=part.saved.tensor - part.core.tensor)
    # a policy keeps nothing that would not be kept without it
    selective = min(kept + part.selective, without_core, key=lambda saved: saved.total)
    return Activations(none=part.saved, attention=without_core, selective=selective, full=kept)


def matmul(tokens: int, n: int, k: int, side: str, *, count: int = 1) -> Operator:
    """Return a weight's product with every token; ``side`` is what tensor parallelism divides."""
    return Operator(
        kind=OperatorKind.MATMUL,
        flops=2 * tokens * n * k,
        bytes=0,
        m=tokens,
        n=n,
        k=k,
        split=Split.TENSOR if side else Split.REPLICATED,
        split_side=side,
        count=count,
    )


def convolution(m: int, n: int, k: int) -> Operator:
    """Return a convolution as the product of ``m`` places, ``n`` channels and ``k`` inputs of each."""
    return Operator(kind=OperatorKind.CONVOLUTION, flops=2 * m * n * k, bytes=0, m=m, n=n, k=k)


def elementwise(moved: float, split: Split, *, count: int = 1) -> Operator:
    """Return kernels that move bytes and compute next to nothing."""
    return Operator(
        kind=OperatorKind.ELEMENTWISE, flops=0, bytes=moved, split=split, count=count, weighted=False
    )


def norm(setting: Setting, *, added: bool, gathered: bool = False, readers: int = 1) -> Part:
    """Return a norm over the width, with the residual addition before it if ``added``.

    Such a norm, and one that is ``gathered``, is read by a matmul whose columns tensor parallelism divides.
    Its output is gathered for that, and torch keeps it whole; Megatron gathers it again in backward
    (Korthikanti et al., section 4.2.2). Under autocast its input is in fp32, and each of its ``readers``,
    the products, keeps a short copy of its output. Without readers its output is kept by what follows.
    """
    a, b, tokens = setting.architecture, setting.element, setting.tokens
    rms = a.norm is Norm.RMS
    made = min(readers, 1) * b * a.hidden
    if setting.autocast:
        # its input and what it multiplies with its weight; or its input alone
        kept = (2 * _FP32 * a.hidden + _FP32) if rms else (_FP32 * a.hidden + 2 * _FP32)
        kept += readers * b * a.hidden
    elif setting.kernels is Kernels.EAGER and rms:
        # the fp32 copy (in fp32 the residual itself), the normalised input, and the next matmul's input
        kept = (_FP32 + b) * a.hidden + _FP32 + made
        if a.relative_buckets and b < _FP32:
            # T5 multiplies the input itself, not its fp32 copy
            kept += b * a.hidden
    elif setting.kernels.compiled:
        kept = b * a.hidden + _FP32
    else:
        kept = b * a.hidden + 2 * _FP32 + made
    copies = readers if setting.autocast else 1
    whole = copies * b * a.hidden if (added or gathered) and not setting.kernels.fused else 0
    passes = 4 if setting.kernels is Kernels.EAGER and rms else 1
    moved = 2 * b * passes + (3 * b if added else 0)
    return Part(
        parameters=(Parameters(trainable=a.hidden * a.norm.weights),) if a.norm.weights else (),
        operators=(elementwise(moved * a.hidden * tokens, Split.SEQUENCE),),
        saved=Saved(sequence=(kept - whole) * tokens, replicated=whole * tokens),
    )


def attention(setting: Setting, *, causal: bool, memory_tokens: int | None = None) -> Part:
    """Return self-attention, or attention to ``memory_tokens`` of another stack.

    Flash and memory-efficient attention keep q, k, v, their output and one fp32 a row and head. A fused
    projection stays whole while its queries live, in decoders beside the copies of keys and values that
    the Hugging Face cache makes.
    """
    a = setting.architecture
    if a.latent is not None:
        return _latent_attention(setting)
    tokens, b = setting.tokens, setting.element
    keys = tokens if memory_tokens is None else memory_tokens
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    weights = a.hidden * (q + 2 * kv) + q * a.hidden
    inner_bias = (q + (2 if a.key_bias else 1) * kv) if a.qkv_bias else 0
    sinks = a.heads if a.sinks else 0
    groups = [Parameters(trainable=weights + inner_bias + sinks, split=Split.TENSOR)]
    replicated = (a.hidden if a.output_bias else 0) + _qk_norm_parameters(a)
    if replicated:
        groups.append(Parameters(trainable=replicated))
    flash = setting.kernels is not Kernels.FUSED_MATH
    statistics = _FP32 * a.heads * tokens if flash else 0
    rotary = 0 if a.positions or a.relative_buckets else 2 * b * (q + kv) * tokens
    kept = b * (2 * q * tokens + 2 * kv * keys) + statistics
    if a.qk_norm and setting.kernels is Kernels.EAGER:
        rows = (tokens, keys) if a.qk_norm is QkNorm.WIDTH else (a.heads * tokens, a.kv_heads * keys)
        kept += (_FP32 + b) * (q * tokens + kv * keys) + _FP32 * sum(rows)
    if a.fused_qkv and causal and setting.kernels is Kernels.EAGER:
        kept += 2 * b * kv * keys
    if a.heads_first and not setting.kernels.fused:
        kept += b * q * tokens
    selective = b * ((q + 2 * kv) if a.fused_qkv else (q + kv)) * tokens + b * q * tokens
    seen = _pairs(a, tokens) if flash and causal and memory_tokens is None else tokens * keys
    own = Part(
        parameters=tuple(groups),
        operators=(
            *_projections(a, tokens, keys, (q, kv)),
            _core(seen, q),
            elementwise(rotary + b * q * tokens, Split.TENSOR),
        ),
        saved=Saved(tensor=kept),
        selective=Saved(tensor=selective + statistics),
        core=Saved(tensor=statistics),
    )
    return own if flash else joined(own, _scores(setting, a.heads * tokens * keys))


def _scores(setting: Setting, count: float) -> Part:
    """Return the softmax between attention's products, with masked scores too (arXiv:2205.05198, 4.1).

    The product writes scores, the softmax reads and writes them, and the next product reads them; dropout
    reads and writes them once more, with a byte of a mask. Kept are what the products and dropout read.
    """
    b, dropout = setting.element, setting.architecture.dropout
    kept = Saved(tensor=(b + (b + 1 if dropout else 0)) * count)
    moved = (4 * b + (2 * b + 1 if dropout else 0)) * count
    # two kernels
    return Part(operators=(elementwise(moved / 2, Split.TENSOR, count=2),), saved=kept, core=kept)


def _projections(a: Architecture, tokens: int, keys: int, widths: tuple[int, int]) -> tuple[Operator, ...]:
    q, kv = widths
    out = matmul(tokens, a.hidden, q, "k")
    if a.fused_qkv:
        return matmul(tokens, q + 2 * kv, a.hidden, "n"), out
    return matmul(tokens, q, a.hidden, "n"), matmul(keys, kv, a.hidden, "n", count=2), out


def _qk_norm_parameters(a: Architecture) -> int:
    if a.qk_norm is None:
        return 0
    widths = 2 if a.qk_norm is QkNorm.HEAD else a.heads + a.kv_heads
    return a.norm.weights * widths * a.head_dim


def _pairs(a: Architecture, tokens: int) -> float:
    """Return the queries times the keys that each sees under a causal mask, on average over the layers."""
    full = tokens * tokens / 2
    window = a.window
    if window is None or window.size >= tokens:
        return full
    near = window.size / 2 if window.chunked else window.size - window.size**2 / (2 * tokens)
    share = window.layers / a.layers
    return share * near * tokens + (1 - share) * full


def _core(pairs: float, width: int) -> Operator:
    """Return q k^T and its product with v, for so many pairs of a query and a key."""
    return Operator(
        kind=OperatorKind.ATTENTION,
        flops=4 * pairs * width,
        bytes=0,
        split=Split.TENSOR,
        weighted=False,
    )


def _latent_attention(setting: Setting) -> Part:
    """Return multi-head latent attention as it is trained: k and v are expanded per head."""
    a, tokens, b = setting.architecture, setting.tokens, setting.element
    latent = a.latent
    if latent is None:
        raise ValueError("the architecture has no latent attention")
    qk = a.heads * (latent.nope_dim + latent.rope_dim)
    v = a.heads * latent.v_dim
    queries = latent.q_rank or a.hidden
    down = a.hidden * (latent.q_rank + latent.kv_rank + latent.rope_dim)
    norms = latent.q_rank + latent.kv_rank
    keys_values = a.heads * (latent.nope_dim + latent.v_dim)
    up = queries * qk + latent.kv_rank * keys_values
    low_rank = (_FP32 + 2 * b) * norms if setting.kernels is Kernels.EAGER else 2 * b * norms
    statistics = _FP32 * a.heads * tokens
    kept = b * (2 * qk + 2 * v) * tokens + statistics
    return Part(
        parameters=(
            Parameters(trainable=up + v * a.hidden, split=Split.TENSOR),
            Parameters(trainable=down + norms),
        ),
        operators=(
            *((matmul(tokens, latent.q_rank, a.hidden, ""),) if latent.q_rank else ()),
            matmul(tokens, latent.kv_rank + latent.rope_dim, a.hidden, ""),
            matmul(tokens, qk, queries, "n"),
            matmul(tokens, keys_values, latent.kv_rank, "n"),
            matmul(tokens, a.hidden, v, "k"),
            _core(_pairs(a, tokens), (qk + v) // 2),
            elementwise(3 * b * (qk + norms) * tokens, Split.TENSOR),
        ),
        saved=Saved(replicated=low_rank * tokens, tensor=kept),
        selective=Saved(tensor=b * (qk + v) * tokens + statistics, replicated=b * latent.q_rank * tokens),
        core=Saved(tensor=statistics),
    )


def dropout_masks(setting: Setting) -> Part:
    """Return the byte masks of dropout on attention's and the feed-forward's output."""
    if not setting.architecture.dropout:
        return Part()
    return Part(saved=Saved(sequence=2 * setting.architecture.hidden * setting.tokens))
