"""Seconds that one rank computes on one repeat of a block, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.errors import ProfileError
from parastrat.model import OperatorKind, Split
from parastrat.plan import Recompute
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.hardware import Device
    from parastrat.model import Block, Operator
    from parastrat.units import Numbers, Seconds

#: kernel time and launch time join as (a^q + b^q)^(1/q): the longer one hides most of the other.
#: q was fitted on published runs together with the stacks' constants.
_LAUNCH_OVERLAP_EXPONENT = 2.3

#: backward of flash attention has 2.5 times the FLOPs of its forward: five matrix products, not two
#: (Dao, arXiv:2307.08691, section 4.1)
_ATTENTION_BACKWARD = 2.5

_MATMULS = (OperatorKind.MATMUL, OperatorKind.GROUPED_MATMUL, OperatorKind.CONVOLUTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTimes:
    """Kernel seconds of one repeat for one micro-batch, and its kernels' launches."""

    matmul_forward: Seconds
    matmul_backward: Seconds
    attention_forward: Seconds
    traffic_forward: Seconds
    launch_forward: Seconds

    @property
    def forward(self) -> Seconds:
        kernels = self.matmul_forward + self.attention_forward + self.traffic_forward
        return _joined(kernels, self.launch_forward)

    @property
    def backward(self) -> Seconds:
        """Without recompute: twice the matmuls, 2.5 times the attention, twice the traffic and launches."""
        kernels = (
            self.matmul_backward + _ATTENTION_BACKWARD * self.attention_forward + 2 * self.traffic_forward
        )
        return _joined(kernels, 2 * self.launch_forward)

    def recomputed(self, c: Columns) -> Seconds:
        """Return what backward computes again.

        ``selective`` keeps every second matmul and attention, as torchtitan's per-operator list does.
        """
        selective = _joined(0.5 * self.matmul_forward + self.traffic_forward, 0.75 * self.launch_forward)
        again: Numbers = np.where(c.recompute == code_of(Recompute.FULL), self.forward, 0.0)
        again = np.where(c.recompute == code_of(Recompute.ATTENTION), self.attention_forward, again)
        return np.where(c.recompute == code_of(Recompute.SELECTIVE), selective, again)


def _joined(kernels: Seconds, launches: Seconds) -> Seconds:
    q = _LAUNCH_OVERLAP_EXPONENT
    return (kernels**q + launches**q) ** (1 / q)


def block_times(facts: Facts, block: Block, c: Columns) -> BlockTimes:
    """Return the times of one repeat on one rank."""
    device, stack = facts.hardware.device, facts.stack
    each = stack.launches_per_dispatch if facts.model.dispatched else stack.launches_per_operator
    matmuls = [operator for operator in block.operators if operator.kind in _MATMULS]
    attentions = [operator for operator in block.operators if operator.kind is OperatorKind.ATTENTION]
    others = [
        operator for operator in block.operators if operator.kind not in (*_MATMULS, OperatorKind.ATTENTION)
    ]
    shares = _shares(c)
    forward, backward = _matmuls_s(facts, matmuls, shares, c)
    attention = sum(operator.flops * operator.count * shares[operator.split] for operator in attentions)
    moved = sum(operator.bytes * operator.count * shares[operator.split] for operator in others)
    launches = sum(operator.count for operator in block.operators)
    return BlockTimes(
        matmul_forward=forward,
        matmul_backward=backward,
        attention_forward=attention / _attention_rate(device, facts.workload.precision),
        traffic_forward=moved * stack.elementwise_factor / device.memory_bytes_per_s,
        launch_forward=launches * each * device.launch_s,
    )


def _matmuls_s(
    facts: Facts, operators: list[Operator], shares: dict[Split, Numbers], c: Columns
) -> tuple[Seconds, Seconds]:
    """Return the seconds of all products of a block, forward and backward.

    Backward has two of each: of the input (m, k, n) and, where there are weights, of those (n, k, m). All
    operators are rows of one array: one by one they would take ten times as long.
    """
    if not operators:
        return 0.0, 0.0
    device, precision = facts.hardware.device, facts.workload.precision
    column = _columns_of(operators, np.ndim(shares[Split.TENSOR]))
    m, n, k = _sides(operators, c, facts.model.experts)
    flops = column("flops") * column("count") * np.stack([shares[operator.split] for operator in operators])
    of_weights = np.where(column("weighted"), flops / _matmul_rate(device, precision, n, k, m), 0.0)
    backward = flops / _matmul_rate(device, precision, m, k, n) + of_weights
    return (flops / _matmul_rate(device, precision, m, n, k)).sum(axis=0), backward.sum(axis=0)


def _columns_of(operators: list[Operator], axes: int) -> Callable[[str], Any]:
    """Return how a field of operators is read as a column, a row for each, beside plans on further axes."""

    def column(field: str) -> Any:
        values = np.array([getattr(operator, field) for operator in operators], dtype=float)
        return values.reshape(-1, *([1] * axes))

    return column


def sustained_flops_per_s(device: Device, precision: Precision) -> float:
    """Return the rate of large matrix multiplies in a number format.

    A format that the device lacks runs at the next wider one's rate; that it lacks it is a rule's matter.
    torch multiplies fp32 in full fp32 unless told otherwise, so TF32 does not count.

    Raises:
        ProfileError: the device states no rate that the format could run at.
    """
    rates = device.sustained
    ladder = {
        Precision.FP8: (rates.fp8, rates.bf16, rates.fp16, rates.fp32),
        Precision.FP16_MIXED: (rates.fp16, rates.bf16, rates.fp32),
        Precision.FP32: (rates.fp32,),
    }.get(precision, (rates.bf16, rates.fp16, rates.fp32))
    found = next((rate for rate in ladder if rate), device.peak.fp32)
    if found is None:
        raise ProfileError(
            f"{device.name} states no rate for {precision}",
            hint="state the rate under sustained_tflops of the device's profile",
        )
    return found


def _attention_rate(device: Device, precision: Precision) -> float:
    """Return flash attention's forward rate; under fp8 attention stays in bf16."""
    own = Precision.BF16_MIXED if precision is Precision.FP8 else precision
    return sustained_flops_per_s(device, own) * device.attention_efficiency


def _matmul_rate(device: Device, precision: Precision, m: Numbers, n: Numbers, k: Numbers) -> Numbers:
    curve = device.matmul
    reached = m / (m + curve.m_half) * (n / (n + curve.n_half)) * (k / (k + curve.k_half))
    return curve.ceiling * reached * sustained_flops_per_s(device, precision)


def _shares(c: Columns) -> dict[Split, Numbers]:
    """Return the samples of a micro-batch's operators that one rank computes, by what divides them."""
    ones = np.ones_like(c.tp)
    divisors = {
        Split.REPLICATED: ones,
        Split.TENSOR: c.tp,
        Split.SEQUENCE: np.where(c.sequence_parallel, c.tp, 1),
        # tp divides the experts, or under ep their tokens: torchtitan splits what it sends over tp
        # (ReordererSequenceParallel), and as much comes back from the other ranks
        Split.EXPERT: c.tp,
    }
    return {split: c.micro_batch_size / (divisor * c.cp) for split, divisor in divisors.items()}


def _sides(operators: list[Operator], c: Columns, experts: int | None) -> tuple[Numbers, Numbers, Numbers]:
    """Return one rank's m, n and k of operators; at least 1, so that unknown shapes stay finite."""
    column = _columns_of(operators, np.ndim(c.tp))
    m = np.maximum(column("m") * c.micro_batch_size / c.cp, 1)
    n, k = np.maximum(column("n"), 1), np.maximum(column("k"), 1)
    of_experts = np.where(c.ep > 1, 1, c.tp)
    tensor = np.stack(
        [of_experts if operator.split is Split.EXPERT else c.tp + 0 * of_experts for operator in operators]
    )
    for place, operator in enumerate(operators):
        if operator.kind is OperatorKind.GROUPED_MATMUL:
            own = np.where(c.ep > 1, c.tp, 1)
            m[place] = np.maximum(m[place] * c.ep / own / (experts or 1), 1)
    sides = np.array([operator.split_side for operator in operators]).reshape(-1, *([1] * np.ndim(c.tp)))
    n = np.where(sides == "n", np.maximum(n / tensor, 1), n)
    return m, n, np.where(sides == "k", np.maximum(k / tensor, 1), k)
