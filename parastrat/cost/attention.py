"""Seconds of attention's kernels, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parastrat.cost.rates import sustained_flops_per_s
from parastrat.hardware import ATTENTION_KEYS, ATTENTION_ROWS, ATTENTION_WIDTH, AttentionCurve
from parastrat.ranks.softmax import takes_heads, takes_keys
from parastrat.stack import Attention
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.cost.operators import OperatorTable
    from parastrat.units import Mask, Numbers, Seconds

#: rates of kernels that drop scores, which draw a random number for each, over those of the same that drop
#: none, forward and backward: 0.75 to 0.85 and 0.60 to 0.70 of FlashAttention-4 at heads of 64 and 128 on a
#: GB200, where cuDNN's are as fast forward and slower backward (Dao-AILab/flash-attention #2597); taken to
#: be so on other devices
_DROPPING_FORWARD, _DROPPING_BACKWARD = 0.80, 0.65

#: seconds of a backward over those of its forward. It has 2.5 times the FLOPs, five products instead of two
#: (Dao, arXiv:2307.08691, section 4.1), at 0.92 of the forward's rate in FlashAttention-2 and at 0.76 to
#: 0.81 in cuDNN: medians of scripts/data/attention_training.csv
_BACKWARD = {
    # the first one's takes about 2 times as long as the second's, its forward 1.3 to 1.5 (same paper)
    Attention.FIRST: 2.5 / 0.92 * 2 / 1.4,
    Attention.SECOND: 2.5 / 0.92,
    Attention.NEWEST: 2.5 / 0.79,
    Attention.DROPPING: 2.5 / 0.79 * _DROPPING_FORWARD / _DROPPING_BACKWARD,
    # taken to be the second's
    Attention.FLEX: 2.5 / 0.92,
}

#: bytes that torch's kernels of a softmax in fp32 move for each score, where Megatron's own does not run
#: (``ranks.softmax``). Scores are multiplied by the layer's number, masked in their place and put through
#: it (8 + 9 + 8); backward has a kernel of its own, copies gradients, masks these, and multiplies
#: (12 + 8 + 9 + 8)
_TORCHS_FORWARD, _TORCHS_BACKWARD = 25, 37
_FP32_BYTES = Precision.FP32.compute_bytes
#: calls of these, and of the casts to fp32 before and back behind, which short formats have beside them
_TORCHS_CALLS, _CASTS = 3, 2
#: what Megatron's kernel reads and writes forward and backward, in elements
_OWN_FORWARD, _OWN_BACKWARD = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTimes:
    """Seconds of one repeat of each block, blocks before plans."""

    forward: Seconds
    backward: Seconds
    #: calls of torch's kernels in the forward, beside the blocks' operators
    dispatches: Numbers = 0


def attention_times(facts: Facts, table: OperatorTable, shares: Numbers, cp: Numbers) -> AttentionTimes:
    """Return the seconds of some blocks' attention on one rank.

    Args:
        facts: the job.
        table: the blocks' operators.
        shares: samples of each of SPLITS that a rank has.
        cp: ranks that divide the sequence of these.
    """
    if facts.stack.kernels.keeps_scores:
        return _of_products(facts, table, shares, cp)
    forward = _forward_s(facts, table, shares)
    return AttentionTimes(forward=forward, backward=_BACKWARD[facts.stack.attention] * forward)


def _of_products(facts: Facts, table: OperatorTable, shares: Numbers, cp: Numbers) -> AttentionTimes:
    """Return the seconds where scores are kept: of two products forward and four backward, for each head.

    Scores, and in backward their gradients, are products over a head's elements; what else is made is as
    wide as a head, by products over keys.
    """
    found, device, stack = table.attention, facts.hardware.device, facts.stack
    curve = device.matmul
    reached = curve.ceiling * stack.attention_factor * stack.rate_on(device.name)
    rate = sustained_flops_per_s(device, _own_format(facts)) * reached
    each = found.flops / 2 / rate
    scores = each * (1 + curve.n_half / found.keys) * (1 + curve.k_half / found.width)
    others = each * (1 + curve.n_half / found.width) * (1 + curve.k_half / found.keys)
    forward, backward = np.zeros((2, len(table.launches), *np.shape(shares)[1:]))
    dispatches = np.zeros_like(forward)
    instead, is_torchs = _torchs_softmax(facts), _has_torchs_softmax(facts, table, shares * cp)
    for at, (place, of_split) in enumerate(zip(found.blocks, found.split, strict=True)):
        # two products of as many pairs, each with a multiplication and an addition over a head's width
        more = is_torchs[at] * found.flops[at] / (4 * found.width[at])
        forward[place] += (scores[at] + others[at] + instead.forward * more) * shares[of_split]
        backward[place] += (scores[at] + 3 * others[at] + instead.backward * more) * shares[of_split]
        dispatches[place] += instead.dispatches * is_torchs[at]
    return AttentionTimes(forward=forward, backward=backward, dispatches=dispatches)


def _torchs_softmax(facts: Facts) -> AttentionTimes:
    """Return by how much torch's kernels of a softmax take longer for one score than Megatron's, and calls.

    Bytes are those of each kernel, as of operators that torch dispatches.
    """
    device, stack, element = facts.hardware.device, facts.stack, facts.workload.precision.compute_bytes
    casts = _CASTS if element < _FP32_BYTES else 0
    moved = casts * (_FP32_BYTES + element)

    def longer(torchs: int, own: int) -> Seconds:
        bytes_ = (torchs + moved) * stack.dispatched_factor - own * element * stack.elementwise_factor
        return bytes_ / device.memory_bytes_per_s

    return AttentionTimes(
        forward=longer(_TORCHS_FORWARD, _OWN_FORWARD),
        backward=longer(_TORCHS_BACKWARD, _OWN_BACKWARD),
        # Megatron's is one
        dispatches=_TORCHS_CALLS + casts - 1,
    )


def _has_torchs_softmax(facts: Facts, table: OperatorTable, samples: Numbers) -> Mask:
    """Return where torch's kernels run between the products, attention before plans; in fp32 everywhere.

    Traced modules have theirs among the blocks' operators.

    Args:
        facts: the job.
        table: the blocks' operators.
        samples: those of a micro-batch whose heads a rank has, for each of SPLITS.
    """
    found, heads = table.attention, facts.model.heads
    each = np.stack([samples[split] for split in found.split]) if len(found.split) else np.zeros((0, 1))
    if heads is None or facts.model.dispatched:
        return np.zeros(each.shape, dtype=bool)
    keys = found.keys.reshape(-1, *(1,) * (each.ndim - 1))
    in_fp32 = facts.workload.precision is Precision.FP32
    is_torchs: Mask = ~(takes_keys(keys) & takes_heads(heads * each)) | in_fp32
    return is_torchs


def _forward_s(facts: Facts, table: OperatorTable, shares: Numbers) -> Seconds:
    """Return the seconds at the rate of the second FlashAttention, or of the newest where a stack has it.

    What a kernel has too few rows for is the same for any number of them: it has as many as ``shares`` of a
    sample's rows, so that flops x shares x rows_half / (rows x shares) is left.
    """
    found = table.attention
    curve, rate = _kernels(facts)
    # the longer each row takes for what it sees, the more the seconds of one
    slower = found.flops * (1 + curve.keys_half / found.keys) * (1 + curve.width_half / found.width)
    reference = (
        (1 + curve.keys_half / ATTENTION_KEYS)
        * (1 + curve.rows_half / ATTENTION_ROWS)
        * (1 + curve.width_half / ATTENTION_WIDTH)
    )
    seconds = np.zeros((len(table.launches), *np.shape(shares)[1:]))
    for place, of_split, work, rows in zip(found.blocks, found.split, slower, found.rows, strict=True):
        seconds[place] += work / reference / rate * (shares[of_split] + curve.rows_half / rows)
    return seconds


def _kernels(facts: Facts) -> tuple[AttentionCurve, float]:
    """Return the curve and the rate of a stack's kernels on a device."""
    device, stack = facts.hardware.device, facts.stack
    curve, share = device.attention, device.attention_efficiency
    newest = stack.attention in (Attention.NEWEST, Attention.DROPPING)
    if newest and device.newest_attention_efficiency is not None:
        curve, share = device.newest_attention or curve, device.newest_attention_efficiency
    if stack.attention is Attention.DROPPING:
        share *= _DROPPING_FORWARD
    if stack.attention is Attention.FIRST:
        share = device.first_attention_efficiency or share
    if stack.attention is Attention.FLEX:
        share = device.flex_attention_efficiency or share
    share *= stack.attention_factor * stack.rate_on(device.name)
    return curve, sustained_flops_per_s(device, _own_format(facts)) * share


def _own_format(facts: Facts) -> Precision:
    """Return the format that attention computes in: under fp8 it stays in bf16."""
    precision = facts.workload.precision
    return Precision.BF16_MIXED if precision is Precision.FP8 else precision
