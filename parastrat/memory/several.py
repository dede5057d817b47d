"""Many plans in arrays: all ranks of all of them at once, and all moments of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.elementwise import chosen
from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alike import code_of_plans, roughly, unlike
from parastrat.memory.backward import moving_of, ways_of
from parastrat.memory.flying import way_of_turns
from parastrat.memory.gathered import ONCE, of_way
from parastrat.memory.held import rank_held, ranks_read
from parastrat.memory.parts import backward_parts, lacking_of, step_parts
from parastrat.memory.plans import plans_of
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
_MANY, _ALIKE = 30_000, 5000
#: so many at once, of which the processor's cache holds what is made
_MOST = 25_000


def told_apart(job: Job, columns: Columns, policies: Any = None) -> Iterator[tuple[Any, Plans]]:
    """Yield plans with the rows that they are.

    Args:
        job: the job.
        columns: the plans.
        policies: codes of the recompute policies that are looked at, where none is chosen yet.
    """
    if not len(columns.pp):
        return
    codes = code_of_plans(columns)
    for rows in _together(codes, job.pipelines.starts_of_plan):
        if len(rows) == len(codes):
            yield rows, plans_of(job, unlike(job.flags, codes), columns, policies=policies)
        else:
            own = unlike(job.flags, codes[rows])
            yield rows, plans_of(job, own, columns.at(rows), policies=policies)


def _together(codes: Any, starts: float) -> Iterator[Any]:
    """Yield rows that are looked at together: many that are alike, or others whatever they are.

    Args:
        codes: of the rows, the same of those that are alike.
        starts: how many blocks start backward on the ranks of a plan, about.
    """
    rest = np.arange(len(codes))
    if len(codes) * starts <= _MANY:
        yield rest
        return
    for key in (codes, roughly(codes)):
        own = key[rest]
        many = np.bincount(own) * starts > _ALIKE
        for code in np.flatnonzero(many).tolist():
            yield from _at_once(rest[own == code], starts)
        rest = rest[~many[own]]
    if len(rest):
        yield from _at_once(rest, starts)


def _at_once(rows: Any, starts: float) -> list[Any]:
    """Return rows in parts of which the processor's cache holds what is made."""
    return np.array_split(rows, -int(-len(rows) * starts // _MOST))


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
        np.maximum.reduceat(most, spread.first_starts, axis=-1),
        np.maximum.reduceat(held.stepping, spread.first_ranks),
    )


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
    stepping = step_parts(plans, found.held.at(step))
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
    repeats = chosen(found.spread.rank.load.repeats, start.ranks)
    moving = found.moving.at(best)
    lacking = lacking_of(plans, held, repeats, start, moving)
    return backward_parts(plans, held, moving.of_way(way), of_way(lacking, way))


def _first(values: Any, most: Any, rows: Any) -> Any:
    """Return for each row the place of its first value that is the most of these."""
    hits = np.flatnonzero(values == most.take(rows))[::-1]
    first = np.empty(len(most), dtype=np.int64)
    # of repeated places the last write stays
    first[rows.take(hits)] = hits
    return first
