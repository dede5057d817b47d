"""Seconds that one rank spends on gathering parameters and reducing gradients in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, ring_s
from parastrat.plan import Shard
from parastrat.ranks.states import element_bytes, local, shard_ranks

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.ranks import ParameterTotals, RankLoad
    from parastrat.units import Numbers, Seconds


def data_parallel_s(
    facts: Facts, c: Columns, load: RankLoad, fabric: Fabric, units_s: Seconds
) -> dict[str, Any]:
    """Return the seconds of data-parallel collectives and the share of them that can overlap.

    ``each`` are of one gathering, of which a step has ``gatherings``; ``once`` of a step, whatever its
    micro-batches.

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
    root = _unit_s(facts, c, load.root, fabric, gathers=1)
    return {
        # FSDP2 gathers and reduce-scatters unit by unit
        "each": np.where(fsdp, root + units_s, 0.0),
        # HSDP's all-reduce over replicas waits for the last micro-batch
        "once": np.where(fsdp, _replica_s(facts, c, load, fabric), _replicated_s(facts, c, load, fabric)),
        "overlap": np.where(fsdp, stack.fsdp_overlap, replicated),
    }


def gatherings(c: Columns) -> Numbers:
    """Return how often FSDP2 gathers in a step: for every micro-batch; once under a pipeline in torch."""
    return np.where(c.pp > 1, 1, c.gradient_accumulation_steps)


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
    zero = (c.shard == code_of(Shard.OPTIMIZER)) | (c.shard == code_of(Shard.GRADIENTS))
    if not np.any(zero):
        return whole
    return np.where(zero, ring_s(held, group, fabric) + ring_s(gathered, group, fabric), whole)


def fsdp_unit_s(facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric) -> Seconds:
    """Return one unit's collectives: gathered for forward, after resharding again, and reduce-scattered."""
    again = np.where(c.reshard_after_forward & (c.pp == 1), 2, 1)
    return _unit_s(facts, c, unit, fabric, gathers=again)


def _unit_s(facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric, gathers: Numbers) -> Seconds:
    element = element_bytes(facts)
    seconds: Seconds = 0.0
    strides = (c.tp, np.where(c.ep > 1, c.ep, c.tp))
    for held, over, stride in zip(local(unit, c), shard_ranks(c), strides, strict=True):
        if not np.any(held):
            continue
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
