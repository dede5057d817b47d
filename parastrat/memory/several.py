"""Many plans in arrays: all ranks of all of them at once, and all moments of these."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.columns import ends_of
from parastrat.elementwise import chosen
from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alike import code_of_plans, roughly, unlike
from parastrat.memory.backward import moving_of, ways_of
from parastrat.memory.flying import way_of_turns
from parastrat.memory.gathered import ONCE, of_way
from parastrat.memory.held import rank_held, ranks_read
from parastrat.memory.parts import backward_parts, lacking_of, outside_parts
from parastrat.memory.plans import READ, plans_of
from parastrat.ranks.spread import ranks_spread
from parastrat.ranks.turning import turning_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.columns import Columns
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.backward import Moving
    from parastrat.memory.held import RankHeld
    from parastrat.memory.plans import Job, Plans
    from parastrat.ranks.spread import Spread
    from parastrat.ranks.turning import Turning
    from parastrat.units import Bytes

#: blocks that start backward: with more of them in all, plans that are alike are looked at together if
#: these have so many, then such as are so roughly; others whatever they are, in more steps than each needs
_MANY, _ALIKE = 15_000, 8000
#: so many at once, of which the processor's cache holds what is made
_MOST = 40_000
#: bytes of a block that is larger than any array of so many
_BLOCK = 2**24
#: the most of so few plans' values is found by numpy at once sooner than by the place of each
_SEVERAL = 500


def told_apart(job: Job, columns: Columns, policies: Any = None) -> Iterator[tuple[Any, Plans]]:
    """Yield plans with the rows that they are.

    Args:
        job: the job.
        columns: the plans.
        policies: codes of the recompute policies that are looked at, where none is chosen yet.
    """
    if not len(columns.pp):
        return
    keep_freed()
    codes, starts = code_of_plans(columns), job.pipelines.starts_of_plan
    if len(codes) * starts <= _MANY:
        alike = unlike(job.flags, codes)
        yield np.arange(len(codes)), plans_of(job, alike, columns, policies=policies)
        return
    for rows, c in columns.parts(*_together(codes, starts), READ):
        yield rows, plans_of(job, unlike(job.flags, codes.take(rows)), c, policies=policies)


@cache
def keep_freed() -> None:
    """Let a process keep what arrays leave free: to get its pages again takes as long as many a formula.

    The GNU C library gives the free end of its heap back to the system, unless a block half as large that
    was mapped on its own was freed before (mallopt(3), ``M_MMAP_THRESHOLD``). This one is never written to.
    """
    np.empty(_BLOCK, dtype=np.uint8)


def _together(codes: Any, starts: float) -> tuple[Any, list[int]]:
    """Return rows in the order in which they are looked at, and where those end that are so together.

    These are many that are alike, or so roughly, or others whatever they are; no more of them than of which
    the processor's cache holds what is made.

    Args:
        codes: of the rows, the same of those that are alike.
        starts: how many blocks start backward on the ranks of a plan, about.
    """
    counts = np.bincount(codes)
    own, rough = counts * starts > _ALIKE, roughly(np.arange(len(counts)))
    few = np.bincount(rough, weights=counts * ~own) * starts
    # a number for each code of many, behind those of the roughly alike and of all others
    number = np.where(few.take(rough) > _ALIKE, 1 + rough, 0)
    number[own] = len(few) + 1 + np.arange(own.sum())
    # that of few bits numpy sorts in one pass over each byte
    numbers = number.astype(np.int16).take(codes)
    return numbers.argsort(kind="stable"), ends_of(np.bincount(numbers).tolist(), _MOST / starts)


class Peaks(NamedTuple):
    """What ranks of plans hold as blocks start backward, and as the optimizer steps; bytes."""

    kinds: KindBytes
    spread: Spread
    held: RankHeld
    moving: Moving
    #: of all blocks' starts in each way, the most of these, and of each plan
    totals: Sequence[Bytes]
    most: Bytes
    backward: Bytes
    #: the most of each plan's ranks as the optimizer steps
    stepping: Bytes


def peaks_of(plans: Plans) -> Peaks:
    """Return what plans hold at the moments at which they may peak.

    Of plans whose policies are not chosen yet the foremost ranks alone are looked at in backward, as the
    first block of each kind starts.
    """
    kinds, foremost = kinds_bytes(plans), plans.reshards is None
    spread = ranks_spread(plans.job.pipelines, plans.c, foremost=foremost)
    rank, (start,) = spread.rank, spread.rank.starts
    held = rank_held(plans, kinds, rank, ranks_read(plans, rank.rows))
    at = held.at(start.ranks)
    ways = ONCE if foremost else ways_of(plans, held)
    moving = moving_of(plans, kinds, at, start, _turning(plans, spread), ways)
    totals = moving.totals(plans, at)
    most = np.maximum.reduce(totals) if len(totals) > 1 else totals[0]
    return Peaks(
        kinds,
        spread,
        held,
        moving,
        totals,
        most,
        _most_of_plans(most, spread.first_starts),
        _most_of_plans(held.stepping, spread.first_ranks),
    )


def _most_of_plans(values: Any, first: Any) -> Any:
    """Return the most of each plan's values, of which it has a few, by the places of its first ones."""
    if values.ndim > 1 or len(first) <= _SEVERAL:
        return np.maximum.reduceat(values, first, axis=-1)
    # for each plan ``reduceat`` takes as long as to look at fifty values
    behind = np.append(first[1:], len(values)) - first - 1
    most = values.take(first)
    for place in range(1, int(behind.max()) + 1):
        most = np.maximum(most, values.take(first + np.minimum(behind, place)))
    return most


def _turning(plans: Plans, spread: Spread) -> Turning | None:
    turns = plans.alike.turns
    if turns is False:
        return None
    rows = np.arange(len(spread.at)) if turns is True else np.flatnonzero(turns)
    ways = way_of_turns(plans.alike, plans.c)
    return turning_of(plans.job.pipelines, (spread.at, ways), rows, foremost=plans.reshards is None)


def parts_of(plans: Plans) -> Sequence[Bytes]:
    """Return ``PARTS`` of each plan where it holds most, bytes: of equal moments the first."""
    found = peaks_of(plans)
    start: Any = found.spread.rank.starts[0]
    best = _first(found.most, found.backward, start.rows)
    step = _first(found.held.stepping, found.stepping, found.spread.rank.rows)
    rank = start.ranks.take(best)
    sooner = (found.stepping == found.backward) & (step <= rank)
    steps = (found.stepping > found.backward) | sooner
    stepping = outside_parts(plans, found.held.at(step))
    if steps.all():
        return stepping
    backward = _backward_parts(plans, found, start.among(best), best)
    return [np.where(steps, own, other) for own, other in zip(stepping, backward, strict=True)]


def _backward_parts(plans: Plans, found: Peaks, start: Any, best: Any) -> Sequence[Bytes]:
    """Return ``PARTS`` as chosen blocks start, of each plan one, in the first of the ways with most."""
    way = np.zeros(len(best), dtype=np.int64)
    for place, total in reversed(list(enumerate(found.totals))):
        way[total.take(best) == found.backward] = place
    held = found.held.at(start.ranks)
    counts = chosen(found.spread.rank.counts, start.ranks)
    moving = found.moving.at(best)
    lacking = lacking_of(plans, held, counts, start, moving)
    return backward_parts(plans, held, moving.of_way(way), of_way(lacking, way))


def _first(values: Any, most: Any, rows: Any) -> Any:
    """Return for each row the place of its first value that is the most of these."""
    hits = np.flatnonzero(values == most.take(rows))[::-1]
    first = np.empty(len(most), dtype=np.int64)
    # of repeated places the last write stays
    first[rows.take(hits)] = hits
    return first
