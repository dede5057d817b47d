"""The space of plans as columns: meshes, micro-batches, and the options on top of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.plan import (
    PipelineSchedule,
    Recompute,
)
from parastrat.schedules import SPLIT
from parastrat.search.meshes import meshes_of
from parastrat.search.rows import Constraints

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Facts

#: micro-batches beyond this change kernels' efficiency by less than their curves' error
_LARGEST_MICRO_BATCH = 64

#: attention's own recompute is left to the user: with flash attention it frees next to nothing
_RECOMPUTES = (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)

#: more meshes than a space has, and more rows before options multiply them
_MESHES = 2**24
_PLACES = 2**32

#: schedules with chunks of a rank; the last ones split backward
_SCHEDULES = (
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.INTERLEAVED, 4),
    (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 1),
    (PipelineSchedule.ZBV, 2),
)
#: those of them that run with any number of virtual stages
_OF_ANY_STAGES = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)


def batch_columns(facts: Facts, fixed: Constraints, meshes: Columns) -> Columns:
    """Return the meshes joined with every micro-batch that divides a rank's share of the batch.

    Micro-batches are powers of two. A batch that the data axes do not divide keeps one row, so that the
    rule which says so rejects it by name. ``mesh`` is each row's place among the meshes; ``place`` orders
    rows by micro-batch, then by mesh.
    """
    share = facts.workload.global_batch_size // meshes.dp
    whole = facts.workload.global_batch_size % meshes.dp == 0
    if fixed.micro_batch_size is not None:
        sizes = np.array([fixed.micro_batch_size])
    else:
        sizes = 2 ** np.arange(_LARGEST_MICRO_BATCH.bit_length())
    # sizes before meshes
    steps, rest = np.divmod(share, sizes[:, None])
    kept = whole & (steps > 0) & (rest == 0)
    # what cannot be split is kept once, to be rejected by its rule
    kept[0] = True
    if fixed.plain_loop:
        kept &= (share == sizes[:, None]) | ~whole
    size, mesh = kept.nonzero()
    return meshes.at(mesh).joined(
        {
            "mesh": mesh,
            "place": size * _MESHES + mesh,
            "micro_batch_size": sizes[size],
            "gradient_accumulation_steps": np.maximum(steps[size, mesh], 1),
        }
    )


def schedules_of(fixed: Constraints) -> tuple[tuple[PipelineSchedule, int], ...]:
    """Return the schedules that a search compares, each with the virtual stages of a rank."""
    asked, several = fixed.pp_schedule, fixed.virtual_stages
    every = dict.fromkeys(_SCHEDULES)
    if several is not None and several > 1:
        every |= dict.fromkeys((schedule, several) for schedule in _OF_ANY_STAGES)
    return tuple(
        (schedule, chunks)
        for schedule, chunks in every
        if asked in (None, schedule) and several in (None, chunks)
    )


def schedule_columns(batches: Columns, fixed: Constraints) -> tuple[Columns, int]:
    """Return the rows joined with pipeline schedules, and how many of the first are plain ones.

    All but 1F1B need a pipeline, and micro-batches in whole rounds; those that split backward a stack that
    does. ``place`` orders plans as they are told: by their options first, then by micro-batch and mesh.
    """
    pp, compared = batches.pp, schedules_of(fixed)
    whole = np.flatnonzero((pp > 1) & (batches.gradient_accumulation_steps % pp == 0))
    split = whole if batches.splits_backward else whole[:0]
    rows = [split if schedule in SPLIT else whole for schedule, _ in compared]
    plain = compared[:1] == _SCHEDULES[:1]
    if plain:
        rows[0] = np.arange(len(pp))
    sizes = [len(own) for own in rows]
    together = np.concatenate(rows)
    schedules = np.repeat([code_of(schedule) for schedule, _ in compared], sizes)
    found = batches.at(together).joined(
        {
            "pp_schedule": np.where(pp[together] > 1, schedules, -1),
            "virtual_stages": np.repeat([chunks for _, chunks in compared], sizes),
            "place": np.repeat(np.arange(len(compared)) * _PLACES, sizes) + batches.place[together],
        }
    )
    return found, len(pp) if plain else 0


def policies(fixed: Constraints) -> tuple[Recompute, ...]:
    """Return the recompute policies that a search compares."""
    return (fixed.recompute,) if fixed.recompute is not None else _RECOMPUTES


def option_counts(fixed: Constraints, columns: Columns) -> Any:
    """Return how many plans each row stands for before resharding and recompute are chosen."""
    return len(policies(fixed)) * (1 + _reshards(columns))


def _reshards(columns: Columns) -> Any:
    """Return where resharding is a choice: torch keeps parameters gathered under a pipeline."""
    return (columns.dp_shard * columns.cp > 1) & (columns.pp == 1)


def reshard_columns(columns: Columns) -> Columns:
    """Return the rows with resharding, where that is a choice, and those without."""
    chosen = np.flatnonzero(_reshards(columns))
    count = len(columns.pp)
    both = columns.at(np.concatenate([chosen, np.arange(count)]))
    reshard = np.arange(len(both.pp)) < len(chosen)
    place = both.place + np.where(reshard, 0, len(_SCHEDULES)) * _PLACES
    return both.joined({"reshard_after_forward": reshard, "place": place})


def recompute_columns(columns: Columns, chosen: Mapping[Recompute, Any]) -> Columns:
    """Return for each recompute policy the rows that are chosen of it, by number, policy after policy."""
    rows = np.concatenate(list(chosen.values()))
    codes = np.repeat([code_of(policy) for policy in chosen], [len(own) for own in chosen.values()])
    place = columns.place[rows] + codes * 2 * len(_SCHEDULES) * _PLACES
    return columns.at(rows).joined({"recompute": codes, "place": place})


def option_columns(fixed: Constraints, columns: Columns) -> Columns:
    """Return the rows joined with resharding and recompute policies, in the order of their places."""
    resharded = reshard_columns(columns)
    return recompute_columns(resharded, dict.fromkeys(policies(fixed), np.arange(len(resharded.pp))))


def plain_schedule(batches: Columns) -> Columns:
    """Return the rows with the simplest schedule, to judge meshes before schedules multiply them."""
    simplest = np.where(batches.pp > 1, code_of(PipelineSchedule.ONE_F_ONE_B), -1)
    return batches.joined({"pp_schedule": simplest, "virtual_stages": 1})


def every_plan(facts: Facts, fixed: Constraints) -> Columns:
    """Return all plans that the constraints allow, rules or not, one row each."""
    meshes = meshes_of(facts, fixed)
    rows, _ = schedule_columns(batch_columns(facts, fixed, meshes), fixed)
    return option_columns(fixed, rows)
