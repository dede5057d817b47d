"""Seconds that one rank computes on one repeat of a block, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parastrat.columns import code_of
from parastrat.errors import ProfileError
from parastrat.model import OperatorKind, Split
from parastrat.plan import Recompute
from parastrat.workload import Precision

if TYPE_CHECKING:
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
    forward: Seconds = 0.0
    backward: Seconds = 0.0
    attention: Seconds = 0.0
    traffic: Seconds = 0.0
    launches = 0
    for operator in block.operators:
        share = _share(operator, c)
        flops = operator.flops * operator.count * c.micro_batch_size * share
        if operator.kind in _MATMULS:
            sides = _sides(operator, c, facts.model.experts)
            forward = forward + flops / _matmul_rate(device, facts.workload.precision, *sides)
            backward = backward + _backward_s(facts, operator, flops, sides)
        elif operator.kind is OperatorKind.ATTENTION:
            attention = attention + flops / _attention_rate(device, facts.workload.precision)
        else:
            moved = operator.bytes * operator.count * c.micro_batch_size * share
            traffic = traffic + moved * stack.elementwise_factor / device.memory_bytes_per_s
        launches += operator.count
    return BlockTimes(
        matmul_forward=forward,
        matmul_backward=backward,
        attention_forward=attention,
        traffic_forward=traffic,
        launch_forward=launches * each * device.launch_s,
    )


def _backward_s(facts: Facts, operator: Operator, flops: Numbers, sides: tuple[Numbers, ...]) -> Seconds:
    """Return the two backward products: of the input (m, k, n) and of the weights (n, k, m)."""
    m, n, k = sides
    device, precision = facts.hardware.device, facts.workload.precision
    of_input = flops / _matmul_rate(device, precision, m, k, n)
    if not operator.weighted:
        return of_input
    return of_input + flops / _matmul_rate(device, precision, n, k, m)


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


def _share(operator: Operator, c: Columns) -> Numbers:
    """Return the part of a micro-batch's operator that one rank computes."""
    divisor = {
        Split.REPLICATED: 1,
        Split.TENSOR: c.tp,
        Split.SEQUENCE: np.where(c.sequence_parallel, c.tp, 1),
        # tp divides the experts, or under ep their tokens: torchtitan splits what it sends over tp
        # (ReordererSequenceParallel), and as much comes back from the other ranks
        Split.EXPERT: c.tp,
    }[operator.split]
    return 1 / (divisor * c.cp)


def _sides(operator: Operator, c: Columns, experts: int | None) -> tuple[Numbers, Numbers, Numbers]:
    """Return one rank's m, n and k; at least 1, so that unknown shapes stay finite."""
    m = np.maximum(operator.m * c.micro_batch_size / c.cp, 1)
    n, k = max(operator.n, 1), max(operator.k, 1)
    tensor = np.where(c.ep > 1, 1, c.tp) if operator.split is Split.EXPERT else c.tp
    if operator.kind is OperatorKind.GROUPED_MATMUL:
        own = np.where(c.ep > 1, c.tp, 1)
        m = np.maximum(m * c.ep / own / (experts or 1), 1)
    if operator.split_side == "n":
        return m, np.maximum(n / tensor, 1), k
    if operator.split_side == "k":
        return m, n, np.maximum(k / tensor, 1)
    return m, n, k
