"""Seconds of matrix products, forward and backward, and of what fp8 casts for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.alignment import slower
from parastrat.cost.convolutions import rate_of_convolutions, relaid_elements, transformed
from parastrat.cost.operators import SPLITS, beside
from parastrat.cost.rates import reached_share, sustained_flops_per_s
from parastrat.model import Split
from parastrat.ranks.division import division
from parastrat.ranks.states import element_bytes
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.operators import Products
    from parastrat.units import Numbers, Seconds

#: bytes that a transposed copy of an element of eight bits moves by itself
_TRANSPOSED_ALONE = 2


def products_s(
    facts: Facts, products: Products, shares: Numbers, c: Columns
) -> tuple[Seconds, Seconds, Seconds]:
    """Return the seconds of each product, forward, backward, and of the latter those of the weights.

    Backward has two of each: of the input (m, k, n) and, where there are weights, of those (n, k, m).
    """
    curve = facts.hardware.device.matmul
    m, n, k = sides_of(products, c, facts.model.experts)
    flops = beside(products.flops, c) * shares[products.split]
    ideal = flops / beside(_fastest(facts, products) * transformed(facts, products), c)
    unaligned = slower(facts, products, (n, k), c)
    if unaligned is not None:
        ideal = ideal * unaligned

    shorter = beside(_shorter_halves(facts, products), c)
    m_half, n_half = shorter * curve.m_half, shorter * curve.n_half
    k_half = beside(_k_half(facts, products), c) * shorter
    # a half is the length that takes as long to move as to multiply: convolutions move their image once
    once = beside(np.maximum(products.reuse, 1.0), c)
    # the input's and the output's products have k inside or outside
    forward = ideal * (1 + m_half / m) * (1 + n_half / once / n) * (1 + k_half / k)
    of_weights = beside(products.weighted, c) * (
        ideal
        * (1 + m_half / once / n)
        * (1 + n_half / k)
        * (1 + beside(_added(facts, products), c) * k_half / m)
    )
    if facts.stack.adds_gradients:
        # an element of the weights stands in m products
        of_weights = of_weights + _accumulated_s(facts, products, c) * flops / 2 / m
    backward = ideal * (1 + m_half / m) * (1 + n_half / k) * (1 + k_half / once / n) + of_weights
    if products.convolution.any():
        relaid = _relaid_s(facts, products, c)
        forward, backward, of_weights = forward + relaid, backward + 2 * relaid, of_weights + relaid
    if facts.workload.precision is not Precision.FP8:
        return forward, backward, of_weights
    cast_s = _cast_s(facts, products, c) * flops / 2
    # an element of the input stands in n products, one of the weights in m, one of the output in k
    of_weight = 0.0 if facts.stack.casts_weights_once else cast_s / m
    once = _cast_once(facts, c)
    of_input = np.where(beside(products.gathered & products.divides_n, c), once, 1.0) * cast_s / n
    of_output = np.where(beside(products.gathered & products.divides_k, c), once, 1.0) * cast_s / k
    return forward + of_input + of_weight, backward + of_output, of_weights


def _shorter_halves(facts: Facts, products: Products) -> Any:
    """Return the halves of each product in fp32 over those in 16 bits, which curves are of.

    A half is the length that takes as long to move as to multiply: of twice the bytes, at a lower rate.
    Devices without bf16 have curves of fp16.
    """
    device = facts.hardware.device
    if facts.workload.precision is not Precision.FP32:
        return np.ones(len(products.m))
    rates = np.where(
        products.convolution,
        rate_of_convolutions(device, Precision.FP32),
        sustained_flops_per_s(device, Precision.FP32),
    )
    short = Precision.BF16_MIXED if device.bf16_native else Precision.FP16_MIXED
    return np.minimum(2 * rates / sustained_flops_per_s(device, short), 1.0)


def _relaid_s(facts: Facts, products: Products, c: Columns) -> Seconds:
    """Return the seconds that each convolution's forward takes to have its channels last."""
    moved = facts.workload.precision.compute_bytes * relaid_elements(facts, products)
    rate = facts.hardware.device.memory_bytes_per_s / facts.stack.dispatched_factor
    return beside(moved / rate, c) * c.micro_batch_size


def _k_half(facts: Facts, products: Products) -> Any:
    """Return the depth at which each product reaches half of its rate.

    What a product takes beside its depth is writing what it gives, in 16 bits whatever it reads: on an H100
    the curve's 176 are 0.5 ps an element, two bytes at 3.9 TB/s. At a higher rate that is as many times
    more depth.
    """
    device, half = facts.hardware.device, facts.hardware.device.matmul.k_half
    if facts.workload.precision is not Precision.FP8:
        return np.full(len(products.m), half)
    rates = [sustained_flops_per_s(device, own) for own in (Precision.FP8, Precision.BF16_MIXED)]
    return half * np.where(products.repeated, rates[0] / rates[1], 1.0)


def _added(facts: Facts, products: Products) -> Any:
    """Return how many times two bytes the products of weights' gradients move for each element they give.

    Where they add to the gradients of micro-batches before, those are read and written in their own format.
    """
    if not facts.stack.adds_gradients:
        return np.ones(len(products.m))
    return np.where(products.grouped, 1.0, element_bytes(facts).gradient)


def _fastest(facts: Facts, products: Products) -> Any:
    """Return the rate that large products approach, for each.

    Under fp8 logits stay in bf16, as torchtitan's filter and Megatron-Core's output layer have it.
    """
    device, precision = facts.hardware.device, facts.workload.precision
    outside = Precision.BF16_MIXED if precision is Precision.FP8 else precision
    inside: Any = sustained_flops_per_s(device, precision)
    ends: Any = sustained_flops_per_s(device, outside)
    if products.convolution.any():
        ends = np.where(products.convolution, rate_of_convolutions(device, outside), ends)
        inside = np.where(products.convolution, rate_of_convolutions(device, precision), inside)
    if precision is Precision.FP8 and facts.stack.scales_rows:
        inside *= facts.stack.scaled_rows_factor
    grouped = np.where(products.grouped, facts.stack.grouped_factor, 1.0)
    return reached_share(facts) * grouped * np.where(products.repeated, inside, ends)


def _accumulated_s(facts: Facts, products: Products, c: Columns) -> Seconds:
    """Return the seconds of adding the gradient of one expert's weight to those of micro-batches before."""
    added = beside(products.weighted & products.grouped, c)
    # the sum is read and written
    return added * 2 * element_bytes(facts).gradient / facts.hardware.device.memory_bytes_per_s


def _cast_s(facts: Facts, products: Products, c: Columns) -> Seconds:
    """Return the seconds of casting one element to fp8, for each product."""
    moved = facts.stack.cast_bytes * facts.stack.elementwise_factor
    return beside(products.repeated, c) * moved / facts.hardware.device.memory_bytes_per_s


def _cast_once(facts: Facts, c: Columns) -> Numbers:
    """Return what a rank casts of what sequence parallelism gathers, over casting all of it.

    It is cast before that, each rank its stretch: by torchao (float8/float8_tensor_parallel.py @36027d8,
    Float8ColwiseParallel), by Transformer Engine (pytorch/distributed.py @d0067d0, _all_gather_fp8). With a
    scale for each row all is cast behind. A transposed copy is not gathered, but made of all by itself.
    """
    stack = facts.stack
    if stack.scales_rows or not stack.cast_bytes:
        return 1.0
    copied = stack.transposed_cast_bytes if _transposes(facts) else 0.0
    moved = max(stack.cast_bytes - copied, 0.0) / c.tp + (_TRANSPOSED_ALONE if copied else 0.0)
    return np.where(c.sequence_parallel & (c.tp > 1), moved / stack.cast_bytes, 1.0)


def _transposes(facts: Facts) -> bool:
    """Return whether products read operands transposed that they have another side of."""
    major = (facts.hardware.device.compute_capability or "").partition(".")[0]
    below = facts.stack.transposes_below
    return below is None or not major.isdigit() or int(major) < below


def sides_of(products: Products, c: Columns, experts: int | None) -> tuple[Numbers, Numbers, Numbers]:
    """Return one rank's m, n and k of products; at least 1, so that unknown shapes stay finite."""
    d = division(c)
    m = np.maximum(beside(products.m, c) * c.micro_batch_size / c.cp, 1)
    n, k = np.maximum(beside(products.n, c), 1), np.maximum(beside(products.k, c), 1)
    if products.grouped.any():
        own = np.where(c.ep > 1, c.tp, d.expert_tensor / d.experts)
        m[products.grouped] = np.maximum(m[products.grouped] * c.ep / own / (experts or 1), 1)
    of_experts = beside(products.split == SPLITS.index(Split.EXPERT), c)
    divisor = np.where(of_experts, np.where(c.ep > 1, 1, d.experts), c.tp)
    n = n / np.where(beside(products.divides_n, c), divisor, 1)
    k = k / np.where(beside(products.divides_k, c), divisor, 1)
    return m, np.maximum(n, 1), np.maximum(k, 1)
