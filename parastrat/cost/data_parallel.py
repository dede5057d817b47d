"""Seconds that one rank spends on gathering parameters and reducing gradients in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, ring_s
from parastrat.memory import block_totals, element_bytes, local, shard_ranks
from parastrat.plan import Shard

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.stages import ParameterTotals, RankLoad
    from parastrat.units import Numbers, Seconds


def data_parallel_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> dict[str, Any]:
    """Return ``total`` seconds of data-parallel collectives in a step and the share that can overlap."""
    fsdp = c.shard == code_of(Shard.PARAMETERS)
    some = c.shard >= code_of(Shard.OPTIMIZER)
    stack = facts.stack
    return {
        "total": np.where(fsdp, _fsdp_s(facts, c, load, fabric), _replicated_s(facts, c, load, fabric)),
        "overlap": np.where(fsdp, stack.fsdp_overlap, np.where(some, stack.zero_overlap, stack.dp_overlap)),
    }


def _replicated_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> Seconds:
    """DDP's all-reduce once a step; ZeRO-1 and ZeRO-2 reduce-scatter gradients and gather weights.

    DDP's buckets hold gradients in the weights' own format.
    """
    element = element_bytes(facts)
    dense, experts = local(load.trainable, c)
    group = Group(ranks=c.dp * c.cp, stride=c.tp)
    held = (dense + experts) * element.gradient
    gathered = (dense + experts) * element.compute
    whole = all_reduce_s(held, group, fabric)
    split = ring_s(held, group, fabric) + ring_s(gathered, group, fabric)
    return np.where(c.shard >= code_of(Shard.OPTIMIZER), split, whole)


def _fsdp_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> Seconds:
    """FSDP2's gathers and reduce-scatters unit by unit, and HSDP's all-reduce of the shards.

    Each micro-batch gathers for forward and, after resharding, again for backward (the root unit stays),
    and reduce-scatters; the all-reduce over replicas waits for the last one. Under a pipeline torch
    gathers once and reduces once a step.
    """
    total: Seconds = _unit_s(facts, c, load.root, fabric, gathers=1)
    again = np.where(c.reshard_after_forward & (c.pp == 1), 2, 1)
    for block, count in zip(facts.model.blocks, load.repeats, strict=True):
        if block.unit and count:
            total = total + count * _unit_s(facts, c, block_totals(block), fabric, gathers=again)
    repeats = np.where(c.pp > 1, 1, c.gradient_accumulation_steps)
    return total * repeats + _replica_s(facts, c, load, fabric)


def _unit_s(facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric, gathers: Numbers) -> Seconds:
    element = element_bytes(facts)
    seconds: Seconds = 0.0
    strides = (c.tp, np.where(c.ep > 1, c.ep, c.tp))
    for held, over, stride in zip(local(unit, c), shard_ranks(c), strides, strict=True):
        group = Group(ranks=over, stride=stride)
        one = gathers * ring_s(held * element.compute, group, fabric)
        one = one + ring_s(held * element.reduce, group, fabric)
        seconds = seconds + one * (held > 0)
    return seconds


def _replica_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> Seconds:
    reduce = element_bytes(facts).reduce
    shards = sum(held / over for held, over in zip(local(load.trainable, c), shard_ranks(c), strict=True))
    group = Group(ranks=c.dp_replicate, stride=c.dp_shard * c.cp * c.tp)
    return all_reduce_s(shards * reduce, group, fabric)
