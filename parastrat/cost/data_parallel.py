"""Seconds that one rank spends on gathering parameters and reducing gradients in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, ring_s
from parastrat.plan import Shard
from parastrat.states import element_bytes, local, shard_ranks

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.stages import ParameterTotals, RankLoad
    from parastrat.units import Numbers, Seconds


def data_parallel_s(
    facts: Facts, c: Columns, load: RankLoad, fabric: Fabric, units_s: Seconds
) -> dict[str, Any]:
    """Return ``total`` seconds of data-parallel collectives in a step and the share that can overlap.

    Args:
        facts: the job.
        c: the plans.
        load: what one pipeline rank holds.
        fabric: the links.
        units_s: one micro-batch's collectives of the rank's FSDP units, as ``fsdp_unit_s`` gives each.
    """
    fsdp = c.shard == code_of(Shard.PARAMETERS)
    stack = facts.stack
    replicated = np.where(c.shard >= code_of(Shard.OPTIMIZER), stack.zero_overlap, stack.dp_overlap)
    sharded_s = _fsdp_s(facts, c, load, fabric, units_s)
    return {
        "total": np.where(fsdp, sharded_s, _replicated_s(facts, c, load, fabric)),
        "overlap": np.where(fsdp, stack.fsdp_overlap, replicated),
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


def _fsdp_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric, units_s: Seconds) -> Seconds:
    """FSDP2's gathers and reduce-scatters unit by unit, and HSDP's all-reduce of the shards.

    Every micro-batch gathers and reduce-scatters; the all-reduce over replicas waits for the last one.
    Under a pipeline torch gathers once and reduces once a step.
    """
    root = _unit_s(facts, c, load.root, fabric, gathers=1)
    repeats = np.where(c.pp > 1, 1, c.gradient_accumulation_steps)
    return (root + units_s) * repeats + _replica_s(facts, c, load, fabric)


def fsdp_unit_s(facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric) -> Seconds:
    """Return one unit's collectives: gathered for forward, after resharding again, and reduce-scattered."""
    again = np.where(c.reshard_after_forward & (c.pp == 1), 2, 1)
    return _unit_s(facts, c, unit, fabric, gathers=again)


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
