"""Seconds that one rank computes on one repeat of each of some blocks, for one micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.attention import attention_times
from parastrat.cost.fresh import fresh_s
from parastrat.cost.operators import SPLITS, beside, operator_table
from parastrat.cost.products import products_s
from parastrat.model import Split
from parastrat.plan import Recompute
from parastrat.ranks.division import division

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.operators import Products
    from parastrat.model import Block
    from parastrat.units import Numbers, Seconds

#: kernel time and launch time join as (a^q + b^q)^(1/q): the longer one hides most of the other.
#: q was fitted on published runs together with the stacks' constants.
_LAUNCH_OVERLAP_EXPONENT = 2.3

#: backward of a Mamba-2 scan moves three times its forward's bytes, tensor by tensor of mamba-ssm's kernels
#: (``sources.state_space``): 17 tensors as wide as the layer in short formats instead of 5, and 34 bytes an
#: element of its states instead of 12
_SCAN_BACKWARD = 3.0

#: time of these kernels over that of their traffic alone: the best one tuned for what computes the output,
#: which has most of both, takes 1.278 ms for 8 sequences of 8,192, 80 heads of 64, states of 128 and chunks
#: of 256 on an H800, at 134 TFLOP/s; mamba-ssm's, in Triton, reaches 91 there (tile-ai/tilelang
#: benchmark/mamba2/README.md @be9c08f, and its figure). Their 26.9 KB a token take 0.525 ms at the device's
#: rate
_SCAN_TRAFFIC = 3.6

#: traffic of backward over that of forward, operator by operator, over ResNet-50: a batch norm reads two
#: tensors twice and writes one, where it reads one twice forward (5 over 3); a ReLU reads two (3 over 2);
#: the gradients of a sum's two readers are added (3 over 3)
_DISPATCHED_BACKWARD = 1.6

#: how often routed rows are read or written to be put in the order of experts and back, forward; the closed
#: form of a mixture counts that (``sources.feed_forward.mixture``)
_PERMUTED = 4


@dataclass(frozen=True, kw_only=True)
class BlockTimes:
    """Kernel seconds of one repeat for one micro-batch, and its kernels' launches."""

    matmul_forward: Seconds
    matmul_backward: Seconds
    #: of matmul_backward, the gradients of weights
    matmul_weights: Seconds
    #: of matmul_forward, the grouped products of experts
    grouped_forward: Seconds
    attention_forward: Seconds
    attention_backward: Seconds
    scan_forward: Seconds
    traffic_forward: Seconds
    #: backward's traffic over forward's
    traffic_again: float
    #: to get memory anew
    fresh_forward: Seconds
    fresh_backward: Seconds
    launch_forward: Seconds

    @cached_property
    def forward(self) -> Seconds:
        kernels = self.matmul_forward + self.attention_forward + self.scan_forward + self.traffic_forward
        return joined(kernels + self.fresh_forward, self.launch_forward)

    @cached_property
    def backward(self) -> Seconds:
        """Without recompute: about twice the matmuls, the traffic and the launches."""
        return joined(self.backward_kernels, self.launch_backward)

    @property
    def launch_backward(self) -> Seconds:
        return 2 * self.launch_forward

    @property
    def weights(self) -> Seconds:
        """Of backward what nothing but the optimizer waits for: their products' share of it."""
        share = self.matmul_weights / np.where(self.backward_kernels > 0, self.backward_kernels, 1.0)
        return share * self.backward

    @cached_property
    def backward_kernels(self) -> Seconds:
        return (
            self.matmul_backward
            + self.attention_backward
            + _SCAN_BACKWARD * self.scan_forward
            + self.traffic_again * self.traffic_forward
            + self.fresh_backward
        )

    def recomputed(self, policy: Recompute) -> Seconds:
        """Return what backward computes again.

        ``selective`` keeps every second matmul and attention, as torchtitan's per-operator list does, and
        of experts, whose products are as many times larger as a token has experts, nothing.
        """
        ways: dict[Recompute, Callable[[], Seconds]] = {
            Recompute.NONE: lambda: 0.0,
            Recompute.ATTENTION: lambda: self.attention_forward,
            Recompute.SELECTIVE: self._selective,
            Recompute.FULL: lambda: self.forward,
        }
        return ways[policy]()

    def _selective(self) -> Seconds:
        products = 0.5 * (self.matmul_forward + self.grouped_forward)
        return joined(products + self.scan_forward + self.traffic_forward, 0.75 * self.launch_forward)


def joined(kernels: Seconds, launches: Seconds) -> Seconds:
    """Return how long kernels take with their launches, either in seconds."""
    q = _LAUNCH_OVERLAP_EXPONENT
    return (kernels**q + launches**q) ** (1 / q)


def block_times(facts: Facts, blocks: tuple[Block, ...], c: Columns) -> BlockTimes:
    """Return the times of one repeat of each block on one rank, blocks before plans.

    All operators are rows of one array: one by one they would take ten times as long.
    """
    device, stack = facts.hardware.device, facts.stack
    dispatched = facts.model.dispatched
    each = stack.launches_per_dispatch if dispatched else stack.launches_per_operator
    table, shares = operator_table(blocks), _shares(c)
    forward, backward, of_weights = products_s(facts, table.products, shares, c)
    attention = attention_times(facts, table, shares, c.cp)
    made, again = fresh_s(facts, blocks, table.products, shares, c)
    byte_s = 1 / device.memory_bytes_per_s
    moved_s = (stack.dispatched_factor if dispatched else stack.elementwise_factor) * byte_s
    launches = beside(table.launches, c) * each + attention.dispatches * stack.launches_per_dispatch
    if stack.launches_per_expert and facts.model.experts:
        held = facts.model.experts / c.ep
        launches = launches + beside(table.grouped, c) * held * stack.launches_per_expert
    if stack.launches_per_collective:
        collectives = np.array([block.tensor_parallel_collectives for block in blocks])
        launches = launches + beside(collectives, c) * (c.tp > 1) * stack.launches_per_collective
    return BlockTimes(
        matmul_forward=table.products.by_block(forward, len(blocks)),
        matmul_backward=table.products.by_block(backward, len(blocks)),
        matmul_weights=table.products.by_block(of_weights, len(blocks)),
        grouped_forward=_grouped_s(table.products, forward, len(blocks), c),
        attention_forward=attention.forward,
        attention_backward=attention.backward,
        scan_forward=_divided(table.scans, shares) * _SCAN_TRAFFIC * byte_s if table.scans.any() else 0.0,
        traffic_forward=_traffic_bytes(facts, blocks, shares, c) * moved_s,
        traffic_again=_DISPATCHED_BACKWARD if dispatched else 2.0,
        fresh_forward=made,
        fresh_backward=again,
        launch_forward=launches * (0.0 if stack.captured else device.launch_s),
    )


def _traffic_bytes(facts: Facts, blocks: tuple[Block, ...], shares: Numbers, c: Columns) -> Numbers:
    """Return what elementwise kernels move over elementwise_factor's traffic, by block.

    Rows that are routed to experts have a factor of their own, but for recipes that capture whole steps,
    which fuse experts' activations with their products: Megatron-Bridge turns
    use_transformer_engine_op_fuser on (perf_recipes @067f987, gpt_oss/common.py). Where exchanges put rows
    in the order of experts, reading and writing them for that, there and back, is no kernel's.
    """
    stack = facts.stack
    routed = 1.0 if stack.captured else stack.routed_traffic_factor
    factors = np.where([split is Split.EXPERT for split in SPLITS], routed, 1.0)
    moved = _divided(operator_table(blocks).traffic * factors, shares)
    if not stack.permutes_in_exchange:
        return moved
    ordered = np.array([_PERMUTED * routed * block.expert_parallel_bytes for block in blocks])
    exchanged: Numbers = moved - np.multiply.outer(ordered, shares[SPLITS.index(Split.EXPERT)]) * (c.ep > 1)
    return exchanged


def _grouped_s(products: Products, forward: Seconds, blocks: int, c: Columns) -> Seconds:
    """Return what of the products' time is of grouped ones, by block."""
    if not products.grouped.any():
        return 0.0
    return products.by_block(beside(products.grouped, c) * forward, blocks)


def _divided(table: Any, shares: Numbers) -> Numbers:
    """Return what blocks have on one rank, of amounts by what divides them."""
    return sum(np.multiply.outer(amounts, share) for amounts, share in zip(table.T, shares, strict=True))


def _shares(c: Columns) -> Numbers:
    """Return the samples of a micro-batch's operators that one rank computes, for each of SPLITS."""
    d = division(c)
    divisors = {
        Split.REPLICATED: np.ones_like(c.tp),
        Split.TENSOR: c.tp,
        Split.SEQUENCE: np.where(c.sequence_parallel, c.tp, 1),
        Split.EXPERT: np.broadcast_to(d.expert_tensor, np.shape(c.tp)),
        Split.VOCABULARY: np.broadcast_to(d.vocabulary, np.shape(c.tp)),
    }
    return c.micro_batch_size / (np.stack([divisors[split] for split in SPLITS]) * c.cp)
