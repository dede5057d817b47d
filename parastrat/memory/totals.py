"""Peak memory of the worst rank of many plans, without its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.flying import in_flight, takes_turns
from parastrat.memory.held import ranks_held, ways
from parastrat.memory.peaks import PARTS, counted, several_steps
from parastrat.memory.unmade import early, early_bytes, lacking_bytes, leaves_free
from parastrat.ranks import ranks_of
from parastrat.ranks.states import context_bytes

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns

#: so many elements less, moments by ranks by rows, take longer than a second pass over what all rows share
_WORTH = 30_000


def memory_totals(facts: Facts, columns: Columns) -> Any:
    """Return ``total`` of ``memory_columns`` for every row, or up to a byte for each part more.

    In a fraction of the time: what hangs on activations and on states is put together before their rows are
    joined, and no part is told from the others. Arrays are as deep as the pipeline with most distinct
    ranks: where few rows have those, the others are looked at apart.
    """
    ranks = ranks_of(facts.model, columns)
    shallow = _shallow(ranks.counts, len(ranks.table.moments.kinds))
    if shallow is None:
        return _totals(facts, columns)
    totals = np.empty(len(columns.pp), dtype=np.int64)
    for own in (shallow, ~shallow):
        rows = np.flatnonzero(own)
        totals[rows] = memory_totals(facts, columns.at(rows))
    return totals


def _shallow(counts: Any, moments: int) -> Any:
    """Return which rows are worth arrays of their own; None where none are.

    Args:
        counts: distinct ranks of each row's pipeline.
        moments: of each rank.
    """
    rows = np.bincount(counts).cumsum()
    spared = moments * rows * (len(rows) - 1 - np.arange(len(rows)))
    limit = int(spared.argmax())
    return counts <= limit if spared[limit] > _WORTH else None


def _totals(facts: Facts, columns: Columns) -> Any:
    ranks, context = ranks_held(facts, columns), context_bytes(facts)
    share = 1 + facts.stack.fragmentation

    of_held, of_saved = ranks.of_held, ranks.of_saved
    rank, one = of_saved(ranks.load.rank), of_saved(share * ranks.one)
    flying = in_flight(columns, rank)
    buffers, sent = crossing_bytes(facts, columns, rank, flying)
    held = np.where(takes_turns(columns), 0.0, flying * one) + share * (sent + buffers)
    states = ranks.states["parameters"] + ranks.states["optimizer"]
    stepping = of_held(states + ranks.states["gradients"] + ranks.optimizer_step)
    gradients = of_held(ranks.states["gradients"])
    lacks = leaves_free(facts, columns)
    soon = early(columns, np.broadcast_to(flying, one.shape)).any(axis=0)
    never = share * ranks.never_met()
    beside = gradients - never
    peak = np.full(held.shape, -np.inf)
    waiting = of_held(share * ranks.waiting) * several_steps(columns)
    for (gathered, freed, unreduced, when), matters in zip(ways(ranks), ranks.mattering, strict=False):
        passing = np.where(ranks.present, share * (ranks.running - freed), -np.inf)
        rows = np.flatnonzero(matters[ranks.held_at])
        whole = len(rows) == len(ranks.held_at)
        held_at, saved_at = ranks.held_at[rows], ranks.saved_at[rows]
        every = (share * gathered).take(held_at, axis=-1) + passing.take(saved_at, axis=-1)
        every += beside if whole else beside.take(rows, axis=-1)
        among = np.flatnonzero(lacks[rows])
        if among.size:
            few = rows[among]
            several = np.broadcast_to(flying, one.shape).take(few, axis=-1)
            own = ranks.unmade.at(when).take(held_at[among], axis=-1)
            if ranks.adding is not None:
                own = own + (share * ranks.adding).take(saved_at[among], axis=-1)
            every[..., among] -= lacking_bytes(own, one.take(few, axis=-1), several, columns.at(few))
        among = np.flatnonzero(soon[rows])
        if among.size:
            few = rows[among]
            several = np.broadcast_to(flying, one.shape).take(few, axis=-1)
            own = share * ranks.unmade.waiting_at(when).take(held_at[among], axis=-1)
            every[..., among] -= early_bytes(own, one.take(few, axis=-1), several, columns.at(few))
        most = every.max(axis=0)
        if unreduced:
            most += waiting if whole else waiting.take(rows, axis=-1)
        peak[..., rows] = most if unreduced else np.maximum(peak.take(rows, axis=-1), most)
    backward = of_held(states) + held + peak
    total = context + (of_held(ranks.pool) + np.maximum(stepping + buffers, backward)).max(axis=0)
    return counted(total) + len(PARTS)
