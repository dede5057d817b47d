"""Seconds that one rank spends on gathering parameters and reducing gradients in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.columns import code_of, derived_with
from parastrat.cost.communication import Group, all_reduce_s, ring_of
from parastrat.cost.offload import copies_s, offloads_parameters
from parastrat.elementwise import some
from parastrat.hardware import DeviceType
from parastrat.plan import Shard
from parastrat.ranks.division import local, shard_ranks
from parastrat.ranks.states import element_bytes
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric, Ring
    from parastrat.ranks import ParameterTotals, RankLoad
    from parastrat.units import Numbers, Seconds


def data_parallel_s(
    facts: Facts, c: Columns, load: RankLoad, fabric: Fabric, units_s: UnitSeconds
) -> dict[str, Any]:
    """Return the seconds of data-parallel collectives and the share of them that can overlap.

    ``each`` are of one gathering, of which a step has ``gatherings``; ``again`` of what resharding gathers
    for each micro-batch once more; ``once`` of a step, whatever its micro-batches. ``alone`` are those of a
    gathering that nothing runs beside: the root's parameters come before anything is computed.

    Args:
        facts: the job.
        c: the plans.
        load: what one pipeline rank holds.
        fabric: the links.
        units_s: the collectives of the rank's FSDP units, all of them together.
    """
    fsdp = c.shard == code_of(Shard.PARAMETERS)
    stack = facts.stack
    replicated = np.where(c.shard >= code_of(Shard.OPTIMIZER), stack.zero_overlap, stack.dp_overlap)
    gather, reduce = gather_and_reduce_s(facts, c, load.root, fabric)
    return {
        # FSDP2 gathers and reduce-scatters unit by unit
        "each": np.where(fsdp, reduce + units_s.each, 0.0),
        "again": np.where(fsdp, units_s.again, 0.0),
        "alone": np.where(fsdp, gather, 0.0),
        "once": _once_s(facts, c, load, fabric),
        "overlap": np.where(fsdp, stack.fsdp_overlap, replicated) * _hides(facts),
    }


def _hides(facts: Facts) -> bool:
    """Return whether collectives can run beside compute: those of hosts take the cores that compute."""
    return facts.hardware.device.type is not DeviceType.CPU


def gatherings(c: Columns) -> Numbers:
    """Return how often FSDP2 gathers and reduces in a step, without resharding.

    For every micro-batch; once under a pipeline, where torch keeps units gathered from their backward on
    and reduces at the end (torch/distributed/pipelining/stage.py, ``backward_maybe_with_nosync``). There
    units that reshard are gathered again behind each forward, once for every micro-batch: of 4, torch 2.13
    gathered each 5 times under GPipe, 1F1B and Interleaved1F1B.
    """
    return np.where(c.pp > 1, 1, c.gradient_accumulation_steps)


def _once_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric) -> Seconds:
    """Return what a step has once: HSDP's all-reduce over replicas, which waits for the last micro-batch.

    Without shards DDP's of all gradients, whose buckets hold them in the weights' own format; ZeRO-1 and
    ZeRO-2 reduce-scatter gradients and gather weights.
    """
    element = element_bytes(facts)
    parts = local(load.trainable, c)
    shards: Any = sum(held / over for held, over in zip(parts, shard_ranks(c), strict=True))
    held: Any = sum(parts)
    fsdp = c.shard == code_of(Shard.PARAMETERS)
    whole = Group(ranks=c.dp * c.cp, stride=c.tp)
    group = Group(
        ranks=np.where(fsdp, c.dp_replicate, whole.ranks),
        stride=np.where(fsdp, c.dp_shard * c.cp * c.tp, whole.stride),
    )
    reduced = np.where(fsdp, shards * element.reduce, held * element.gradient)
    seconds = all_reduce_s(reduced, group, fabric)
    zero = (c.shard == code_of(Shard.OPTIMIZER)) | (c.shard == code_of(Shard.GRADIENTS))
    if not some(zero):
        return seconds
    ring = ring_of(whole, fabric)
    # the root's weights, which tables and norms hold, are gathered as they are
    root: Any = sum(local(load.root, c))
    weights = gathered_element_bytes(facts) * (held - root) + element.compute * root
    return np.where(zero, ring.of(held * element.gradient) + ring.of(weights), seconds)


def copied_s(facts: Facts, c: Columns, load: RankLoad) -> UnitSeconds:
    """Return what is copied where no data axis gathers parameters, as of a device alone."""
    frozen_up, _ = copies_s(facts, c, load.frozen)
    trained_up, down = copies_s(facts, c, load.trainable)
    up = trained_up + frozen_up
    return UnitSeconds(up + down, c.reshard_after_forward * up)


class UnitSeconds(NamedTuple):
    """The collectives of FSDP units."""

    #: gathered, and reduce-scattered
    each: Seconds
    #: gathered for backward where forward resharded, for every micro-batch
    again: Seconds


def fsdp_unit_s(facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric) -> UnitSeconds:
    """Return one unit's collectives."""
    gather, reduce = gather_and_reduce_s(facts, c, unit, fabric, gathered_element_bytes(facts))
    return UnitSeconds(gather + reduce, c.reshard_after_forward * gather)


@derived_with
def _dense_ring(fabric: Fabric, c: Columns) -> Ring:
    """Return the collectives over the ranks that dense parameters are sharded over."""
    return ring_of(Group(ranks=shard_ranks(c)[0], stride=c.tp), fabric)


@derived_with
def _expert_ring(fabric: Fabric, c: Columns) -> Ring:
    """Return those over the ranks that experts' parameters are sharded over."""
    return ring_of(Group(ranks=shard_ranks(c)[1], stride=np.where(c.ep > 1, c.ep, c.tp)), fabric)


def gathered_element_bytes(facts: Facts) -> float:
    """Return the bytes of one element of blocks' weights as data ranks gather it."""
    fp8 = facts.stack.gathers_fp8 and facts.workload.precision is Precision.FP8
    return 1 if fp8 else element_bytes(facts).compute


def gather_and_reduce_s(
    facts: Facts, c: Columns, unit: ParameterTotals, fabric: Fabric, gathered: float | None = None
) -> tuple[Seconds, Seconds]:
    """Return the seconds in which FSDP2 gathers a unit's parameters, and reduce-scatters its gradients.

    Shards that live on the host come up before, and gradients go down behind: of one unit nothing of that
    can run at once.

    Args:
        facts: the job.
        c: the plans.
        unit: the parameters.
        fabric: the links.
        gathered: bytes of an element as it is gathered; of what products compute with.
    """
    element = element_bytes(facts)
    # FSDP2's gradients travel in the format of their reduction, others' in the one that they are kept in
    reduced = element.reduce if facts.stack.dtensors else min(element.reduce, element.gradient)
    gathered = gathered or element.compute
    parts = local(unit, c)
    gather: Seconds = np.zeros(np.shape(sum(parts)))
    reduce = gather
    for held, ring_over in zip(parts, (_dense_ring, _expert_ring), strict=True):
        has = held > 0
        if some(has):
            ring = ring_over(fabric, c)
            hops = has * ring.hops_s
            gather = gather + held * gathered * ring.byte_s + hops
            reduce = reduce + held * reduced * ring.byte_s + hops
    if not some(offloads_parameters(c)):
        return gather, reduce
    up, down = copies_s(facts, c, unit)
    return gather + up, reduce + down
