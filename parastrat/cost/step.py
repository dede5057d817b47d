"""Seconds of one optimizer step on the slowest pipeline rank, in parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, all_to_all_s, fabric_of, ring_s, send_s
from parastrat.cost.compute import block_times
from parastrat.cost.data_parallel import data_parallel_s, fsdp_unit_s, gatherings
from parastrat.distinct import distinct
from parastrat.estimate import TimeEstimate
from parastrat.hardware import FigureKind
from parastrat.plan import Offload, Shard
from parastrat.ranks import RankLoad, block_kinds, mean_ranks, pipeline_ranks, rank_columns
from parastrat.ranks.states import block_totals, element_bytes, updated_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.model import Block, ModelSpec
    from parastrat.units import Seconds

PARTS = (
    "compute",
    "tp_exposed",
    "cp_exposed",
    "ep_exposed",
    "dp_exposed",
    "pp_bubble",
    "pp_exposed",
    "optimizer",
)

#: collectives on activations, which nothing hides
_EXPOSED = ("tp_exposed", "cp_exposed", "ep_exposed")

#: figures of a device on which a step's time rests
_RATE_FIELDS = ("sustained", "memory_bytes_per_s", "matmul", "launch_s")

#: ln of the factor by which a step may be off when a rate is assumed: that is known to a factor of two
_ASSUMED_SPREAD = math.log(2)


#: what decides the seconds of one micro-batch in a block
_BLOCKS_BY = ("micro_batch_size", "cp", "tp", "ep", "sequence_parallel", "async_tp", "recompute")
#: and in all blocks of a rank
_WORK_BY = ("pp", "virtual_stages", *_BLOCKS_BY)
#: what decides a rank's collectives of parameters and gradients, and its optimizer step
_WEIGHTS_BY = (
    "pp",
    "virtual_stages",
    "dp_replicate",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "shard",
    "reshard_after_forward",
    "offload",
)


def time_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``TimeEstimate`` for every row, seconds; plan columns are equal-length arrays."""
    model, fabric = facts.model, _fabric(facts)
    work, at = distinct(columns, _WORK_BY)
    of_work = _work_s(_block_parts(facts, work, fabric), rank_columns(model, work))
    one = {part: seconds[..., at] for part, seconds in of_work.items()}
    of_ranks = _rank_steps(facts, columns, one, rank_columns)
    slowest = of_ranks["step"].argmax(axis=0)
    rows = np.arange(len(columns.pp))
    out = {
        part: np.broadcast_to(seconds, of_ranks["step"].shape)[slowest, rows]
        for part, seconds in of_ranks.items()
    }
    spread = time_spread(facts)
    step = out["step"]
    return {**out, "step_low": step * math.exp(-spread), "step_high": step * math.exp(spread)}


def time_floor(facts: Facts, columns: Columns) -> Seconds:
    """Return the seconds below which no plan of a row gets with its recompute, whatever resharding it has.

    It is the step, without resharding, of a rank with the mean load. Every part of a step is linear in what
    a rank holds, or the larger of such, so that the mean rank takes at most the mean of all ranks, and the
    slowest at least that. Further gathering adds seconds, of which communication that hides behind compute
    takes back a share.
    """
    plain = columns.joined({"reshard_after_forward": False})
    work, at = distinct(plain, _BLOCKS_BY)
    # the mean rank has each block's share, so that all blocks are added up before there are ranks
    (whole,) = pipeline_ranks(facts.model, 1, 1)
    of_work = _work_s(_block_parts(facts, work, _fabric(facts)), whole)
    one = {part: seconds[at] / plain.pp for part, seconds in of_work.items()}
    step: Seconds = _rank_steps(facts, plain, one, mean_ranks)["step"]
    return step


def work_floor(facts: Facts, columns: Columns) -> Seconds:
    """Return the seconds below which ``time_floor`` does not get: those of blocks and of the bubble alone.

    All else, of which there is at least nothing, is left out.
    """
    work, at = distinct(columns, _BLOCKS_BY)
    (whole,) = pipeline_ranks(facts.model, 1, 1)
    of_work = _work_s(_block_parts(facts, work, _fabric(facts)), whole)
    micro_batch = sum(of_work[part] for part in ("compute", *_EXPOSED) if part in of_work)
    slots = columns.gradient_accumulation_steps + (columns.pp - 1) / columns.virtual_stages
    return micro_batch[at] / columns.pp * slots


def _fabric(facts: Facts) -> Fabric | None:
    return fabric_of(facts) if facts.hardware.world_size > 1 else None


def _rank_steps(
    facts: Facts, columns: Columns, work: dict[str, Any], loads: Callable[[ModelSpec, Columns], RankLoad]
) -> dict[str, Any]:
    """Return the parts of the step of every row if one pipeline rank or another is the slowest.

    ``work`` are the seconds of a rank's blocks for one micro-batch. What hangs on few columns is computed
    for the distinct rows of those.
    """
    fabric = _fabric(facts)
    weights, at = distinct(columns, _WEIGHTS_BY)
    of_weights = _weights_s(facts, weights, loads(facts.model, weights), fabric)
    one = work | {part: seconds[..., at] for part, seconds in of_weights.items()}
    return _rank_step(facts, columns, one, _pipeline_sends(facts, columns, fabric))


def _work_s(parts: dict[str, Any], load: RankLoad) -> dict[str, Any]:
    """Return one micro-batch's seconds on a rank, all its blocks together."""
    return {
        part: sum(each * held for each, held in zip(seconds, load.repeats, strict=True))
        for part, seconds in parts.items()
    }


def _weights_s(facts: Facts, c: Columns, load: RankLoad, fabric: Fabric | None) -> dict[str, Any]:
    found = {"optimizer": _optimizer_s(facts, c, load)}
    if fabric is None:
        return found
    units_s: Any = sum(
        fsdp_unit_s(facts, c, block_totals(block), fabric) * count
        for block, count in zip(block_kinds(facts.model).blocks, load.repeats, strict=True)
        if block.unit
    )
    return {**found, **data_parallel_s(facts, c, load, fabric, units_s)}


def time_estimate(time: Mapping[str, Any], row: int) -> TimeEstimate:
    """Return one row of ``time_columns`` as a value."""
    names = (*PARTS, "step_low", "step_high")
    return TimeEstimate(**{name: float(time[name][row]) for name in names})


def time_spread(facts: Facts) -> float:
    """Return the ln of the factor within which 80 % of measured steps lie.

    The stack's own spread; wider where a rate of the device is assumed, not measured or derived.
    """
    assumed = any(
        entry.kind is FigureKind.ASSUMED and entry.field.split(".")[0] in _RATE_FIELDS
        for entry in facts.hardware.device.provenance
    )
    return math.hypot(facts.stack.time_spread, _ASSUMED_SPREAD if assumed else 0.0)


def _block_parts(facts: Facts, work: Columns, fabric: Fabric | None) -> dict[str, Any]:
    """Return the seconds of one repeat for one micro-batch, kinds of block before plans."""
    c, at = distinct(work, _BLOCKS_BY)
    blocks = block_kinds(facts.model).blocks
    times = block_times(facts, blocks, c)
    backward = times.backward
    parts = {"compute": times.forward + backward + times.recomputed(c), "backward": backward}
    if fabric is not None:
        parts |= _collectives_s(facts, blocks, c, fabric)
    return {part: seconds.take(at, axis=1) for part, seconds in parts.items()}


def _collectives_s(facts: Facts, blocks: Sequence[Block], c: Columns, fabric: Fabric) -> dict[str, Any]:
    """Return the seconds of the blocks' collectives on activations, in arrays with blocks before plans."""

    def each(name: str) -> Any:
        return np.array([[getattr(block, name)] for block in blocks], dtype=float)

    zero = np.zeros((len(blocks), len(c.pp)))
    parts = dict.fromkeys(_EXPOSED, zero)
    samples = c.micro_batch_size / c.cp
    if (count := each("tensor_parallel_collectives")).any():
        tensor = all_reduce_s(each("tensor_parallel_bytes") * samples, Group(ranks=c.tp, stride=1), fabric)
        shown = 1 - np.where(c.async_tp, facts.stack.tp_overlap, 0.0)
        parts["tp_exposed"] = 2 * count * tensor * shown
    if (size := each("context_parallel_bytes")).any():
        gathered = size * c.micro_batch_size / c.tp
        # forward gathers keys and values; backward gathers them again and reduce-scatters their gradients
        parts["cp_exposed"] = (size > 0) * 3 * ring_s(gathered, Group(ranks=c.cp, stride=c.tp), fabric)
    if (size := each("expert_parallel_bytes")).any():
        # ranks of one tp group send a share of the tokens each, as the experts' compute has it
        sent = size * samples / c.tp
        # dispatch and combine, each forward and backward
        parts["ep_exposed"] = (size > 0) * 4 * all_to_all_s(sent, Group(ranks=c.ep, stride=1), fabric)
    return parts


def _rank_step(facts: Facts, c: Columns, one: dict[str, Any], sends: Seconds) -> dict[str, Any]:
    """Return the parts of the step if this pipeline rank is the slowest.

    ``one`` are the seconds of one micro-batch on the rank, and those of its weights.
    """
    steps = c.gradient_accumulation_steps
    zero = np.zeros(len(c.pp))
    exposed = {part: one.get(part, zero) for part in _EXPOSED}
    micro_batch = sum(exposed.values(), one["compute"])
    compute = steps * one["compute"]
    parts = {
        "compute": compute + facts.stack.step_constant_s,
        **{part: steps * seconds for part, seconds in exposed.items()},
        "dp_exposed": zero,
        "pp_bubble": (c.pp - 1) / c.virtual_stages * micro_batch,
        "pp_exposed": sends,
        "optimizer": one["optimizer"],
    }
    if "each" in one:
        total = one["each"] * gatherings(c) + one["once"]
        beside = np.where(c.shard == code_of(Shard.PARAMETERS), compute, one["backward"])
        parts["dp_exposed"] = total - one["overlap"] * np.minimum(total, beside)
    return {**parts, "step": sum(parts[part] for part in PARTS)}


def _pipeline_sends(facts: Facts, c: Columns, fabric: Fabric | None) -> Seconds:
    """Return the exposed activations' and gradients' transfers of one rank over a step."""
    if fabric is None:
        return np.zeros(len(c.pp))
    boundary = max(block.boundary_bytes for block in facts.model.blocks)
    sequence = np.where(c.sequence_parallel, c.tp, 1)
    payload = boundary * c.micro_batch_size / (c.cp * sequence)
    one = send_s(payload, c.dp * c.cp * c.tp, fabric)
    count = 2 * c.gradient_accumulation_steps * c.virtual_stages
    return np.where(c.pp > 1, (1 - facts.stack.pp_overlap) * count * one, 0.0)


def _optimizer_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return the optimizer's memory traffic: gradients read, weights and states read and written.

    Offloaded states stay on the host: gradients go down and weights come up through the host link.
    """
    element, device = element_bytes(facts), facts.hardware.device
    updated = updated_parameters(load, c)
    moved = element.gradient + 2 * (element.parameter + element.optimizer)
    seconds = updated * moved * facts.stack.elementwise_factor / device.memory_bytes_per_s
    link = device.host_bytes_per_s or device.memory_bytes_per_s
    offloaded = updated * (element.gradient + element.parameter) / link
    return seconds + np.where(c.offload == code_of(Offload.NONE), 0.0, offloaded)
