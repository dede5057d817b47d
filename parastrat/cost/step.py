"""Seconds of one optimizer step on the slowest pipeline rank, in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, ends_of
from parastrat.cost.blocks import EXPOSED, BlockSeconds, block_seconds
from parastrat.cost.bubble import bubble_s
from parastrat.cost.communication import fabric_of
from parastrat.cost.copies import CastSeconds, autocast_s, copies_s, with_casts
from parastrat.cost.data_parallel import UnitSeconds, copied_s, data_parallel_s, fsdp_unit_s, gatherings
from parastrat.cost.expert_sums import expert_sum_s, expert_sums
from parastrat.cost.offload import offloads_parameters, rests_on_assumed
from parastrat.cost.optimizer import optimizer_s, sum_s
from parastrat.cost.sends import pipeline_sends_s
from parastrat.cost.uncertainty import ASSUMED_SPREAD, assumes_rates, time_spread
from parastrat.distinct import distinct
from parastrat.elementwise import some
from parastrat.estimate import TimeEstimate
from parastrat.plan import PipelineSchedule, Shard
from parastrat.ranks import RankLoad, block_kinds, rank_columns, whole_model
from parastrat.ranks.pipelines import pipelines_of
from parastrat.ranks.totals import unit_totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.model import ModelSpec
    from parastrat.units import Numbers, Seconds

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

#: what decides a rank's collectives of parameters and gradients, and its optimizer step
_WEIGHTS_BY = (
    "pp",
    "virtual_stages",
    # where it bends the chain
    "pp_schedule",
    "dp_replicate",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "sequence_parallel",
    "shard",
    "reshard_after_forward",
    "offload",
)

#: what is read of plans beside
_READ = (*_WEIGHTS_BY, "mesh", "dp", "micro_batch_size", "gradient_accumulation_steps", "recompute")

#: the weights of so few plans are computed sooner than these are told apart
_FEW = 1000

#: so many plans at once, of which what is made stays in memory that the process has
_MOST = 14_000


def time_columns(facts: Facts, columns: Columns, blocks: BlockSeconds | None = None) -> dict[str, Any]:
    """Return the parts of ``TimeEstimate`` for every row, seconds; plan columns are equal-length arrays.

    ``blocks`` are the seconds of the rows' blocks where they are known already.
    """
    of_ranks = _of_ranks(facts, columns, blocks)
    slowest, rows = of_ranks["step"].argmax(axis=0), np.arange(len(columns.pp))
    out = {
        part: seconds[slowest, rows] if seconds.ndim > 1 else seconds for part, seconds in of_ranks.items()
    }
    if assumes_rates(facts):
        out["assumed_spread"] = np.full(len(columns.pp), ASSUMED_SPREAD)
    spread: Numbers = time_spread(facts)
    assumed = rests_on_assumed(facts, columns)
    if some(assumed):
        spread = np.where(assumed, time_spread(facts, assumes=True), spread)
    step = out["step"]
    return {**out, "step_low": step * np.exp(-spread), "step_high": step * np.exp(spread)}


def step_s(facts: Facts, columns: Columns, blocks: BlockSeconds | None = None) -> Seconds:
    """Return ``step`` of ``time_columns`` for every row, without its parts."""
    many = len(columns.pp)
    if many <= _MOST:
        slowest: Seconds = _of_ranks(facts, columns, blocks)["step"].max(axis=0)
        return slowest
    blocks, steps = blocks or block_seconds(facts, columns), np.empty(many)
    for rows, own in columns.parts(*_by_ranks(facts.model, columns), _READ):
        steps[rows] = step_s(facts, own, blocks.rows(rows))
    return steps


def _by_ranks(model: ModelSpec, columns: Columns) -> tuple[Any, list[int]]:
    """Return rows in the order in which they are looked at, and where those end that are so together.

    These have as many distinct ranks: seconds are computed for the most that any of them has. Of one
    pipeline they stand behind each other, so that fewer differ in their weights.
    """
    table, at = pipelines_of(model).table(columns)
    number = table.counts.argsort(kind="stable").argsort().astype(np.int16)
    ends = ends_of(np.bincount(table.counts.take(at)).tolist(), _MOST)
    return number.take(at).argsort(kind="stable"), ends


def _of_ranks(facts: Facts, columns: Columns, blocks: BlockSeconds | None) -> dict[str, Any]:
    """Return the parts of the step if one pipeline rank or another is the slowest, ranks before rows."""
    blocks = blocks or block_seconds(facts, columns)
    of_work = blocks.of_ranks(columns, rank_columns(facts.model, columns).repeats)
    of_all, weights = blocks.of_model(columns), _of_distinct(facts, columns)
    return rank_step(facts, columns, {**of_work, "of_all": of_all, **weights})


def _fabric(facts: Facts) -> Fabric | None:
    return fabric_of(facts) if facts.hardware.world_size > 1 else None


def _of_distinct(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the seconds of the weights of every row, computed for those that differ in what decides."""
    if len(columns.pp) <= _FEW:
        return weights_s(facts, columns, rank_columns(facts.model, columns))
    weights, at = distinct(columns, _WEIGHTS_BY)
    seconds = weights_s(facts, weights, rank_columns(facts.model, weights))
    return {part: each.take(at, axis=-1) for part, each in seconds.items()}


def weights_s(facts: Facts, c: Columns, load: RankLoad) -> dict[str, Any]:
    """Return the seconds of a rank's collectives of parameters and gradients, and of its optimizer step."""
    fabric = _fabric(facts)
    found = {
        "optimizer": optimizer_s(facts, c, load, fabric),
        "summed": sum_s(facts, c, load),
    }
    casts = autocast_s(facts, c)
    if casts is not None:
        found |= _summed("cast", casts, load.repeats)
        found |= _summed("all_cast", casts, whole_model(facts.model).repeats)
    if some(offloads_parameters(c)):
        gathers = fabric is not None and c.shard == code_of(Shard.PARAMETERS)
        alone = copied_s(facts, c, load)
        found["copied"], found["copied_again"] = (np.where(gathers, 0.0, part) for part in alone)
    if fabric is None:
        return found
    units = fsdp_unit_s(facts, c, unit_totals(block_kinds(facts.model)), fabric)
    held = (sum(part * count for part, count in zip(each, load.repeats, strict=True)) for each in units)
    if facts.model.divides_tokens:
        found["sums"] = expert_sum_s(facts, c, load, fabric)
    copies = copies_s(facts, c, load)
    if copies is not None:
        found["copies"], found["copies_again"] = sum(copies), c.reshard_after_forward * copies.out
    return {**found, **data_parallel_s(facts, c, load, fabric, UnitSeconds(*held))}


def _summed(name: str, casts: CastSeconds, repeats: Sequence[Any]) -> dict[str, Any]:
    """Return casts of some repeats of all kinds of blocks."""
    return {
        f"{name}_{of}": sum(own * count for own, count in zip(seconds, repeats, strict=True))
        for of, seconds in casts._asdict().items()
    }


def time_estimate(time: Mapping[str, Any], row: int) -> TimeEstimate:
    """Return one row of ``time_columns`` as a value."""
    names = (*PARTS, "step_low", "step_high", *({"assumed_spread"} & time.keys()))
    return TimeEstimate(**{name: float(time[name][row]) for name in names})


def rank_step(facts: Facts, c: Columns, one: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of the step if this pipeline rank is the slowest.

    ``one`` are the seconds of one micro-batch on the rank and on all together, and those of its weights.
    """
    steps = c.gradient_accumulation_steps
    zero = np.zeros(len(c.pp))
    of_all = one["of_all"]
    if "cast_weights" in one:
        every = CastSeconds(one["all_cast_weights"], one["all_cast_gradients"])
        of_all = with_casts(c, of_all, every)
        one = with_casts(c, one, CastSeconds(one["cast_weights"], one["cast_gradients"]))
    compute = steps * one["compute"]
    parts = {
        "compute": compute + facts.stack.step_constant_s,
        **{part: steps * one[part] for part in EXPOSED},
        "dp_exposed": zero,
        "pp_bubble": bubble_s(c, one, of_all),
        "pp_exposed": pipeline_sends_s(facts, c, _fabric(facts)),
        "optimizer": one["optimizer"] + (steps - 1) * one["summed"],
    }
    if "sums" in one:
        parts["tp_exposed"] = parts["tp_exposed"] + expert_sums(c) * one["sums"]
    if "each" in one:
        beside = np.where(c.shard == code_of(Shard.PARAMETERS), compute, _window(c) * one["backward"])
        parts["dp_exposed"] = exposed_s(one, gatherings(c), steps, beside)
    if "copies" in one:
        copies = one["copies"] * gatherings(c) + one["copies_again"] * steps
        parts["dp_exposed"] = parts["dp_exposed"] + copies
    if "copied" in one:
        copied = {"each": one["copied"], "again": one["copied_again"], "once": 0.0, "alone": 0.0}
        copied["overlap"] = facts.stack.fsdp_overlap
        parts["dp_exposed"] = parts["dp_exposed"] + exposed_s(copied, gatherings(c), steps, compute)
    return {**parts, "step": sum(parts[part] for part in PARTS)}


def _window(c: Columns) -> Numbers:
    """Return how many micro-batches' backward a step's last reductions can run beside.

    Gradients are whole with the last micro-batch. Interleaved schedules take micro-batches in groups of as
    many as there are ranks, through one chunk after the other (arXiv:2104.04473, section 2.2): those of a
    chunk are whole when its part of the last group is through, and all other chunks' parts still come.
    """
    group = np.minimum(c.pp, c.gradient_accumulation_steps) * (c.virtual_stages - 1) / c.virtual_stages
    return np.where(c.pp_schedule == code_of(PipelineSchedule.INTERLEAVED), np.maximum(group, 1), 1)


def exposed_s(
    one: Mapping[str, Any], gathered: Numbers, micro_batches: Numbers, beside: Seconds
) -> Seconds:
    """Return by how much collectives of parameters and gradients make a step longer.

    Beside one of them compute is slower (``overlap``), so that even what is hidden takes its share; and
    where they take longer than what they hide behind, the step is as long as they are. That is what
    ``timeline`` shows of equal units.

    Args:
        one: as ``data_parallel_s`` returns it.
        gathered: how often a step gathers without resharding.
        micro_batches: of a step, each of which gathers again with it.
        beside: what can run beside them.
    """
    total = one["each"] * gathered + one["again"] * micro_batches + one["once"]
    hidden_in_part = np.maximum(total - beside, (1 - one["overlap"]) * total)
    return one["alone"] * gathered + hidden_in_part
