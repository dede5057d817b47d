"""One plan, whose numbers are Python's own: its ranks and their moments one after the other."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from parastrat.columns import Row, code_of
from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alike import alike_of, code_of_plans
from parastrat.memory.backward import moving_of, ways_of
from parastrat.memory.ceilings import ceilings
from parastrat.memory.flying import way_of_turns
from parastrat.memory.held import rank_held, ranks_read
from parastrat.memory.parts import backward_parts, lacking_of, outside_parts
from parastrat.memory.plans import READ, plans_of
from parastrat.ranks.spread import ranks_alone
from parastrat.ranks.turning import turning_alone
from parastrat.schedules import V_SHAPED
from parastrat.tables import sized_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.columns import Columns
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.backward import Moving
    from parastrat.memory.held import OfRanks, RankHeld
    from parastrat.memory.plans import Job, Plans
    from parastrat.plan import Plan
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.turning import Turning
    from parastrat.units import Bytes

_TOTAL = itemgetter(0)
_BENT = frozenset(code_of(schedule) for schedule in V_SHAPED)


class RankMoments(NamedTuple):
    """What one of a plan's ranks holds at the moments at which it may peak."""

    rank: Rank
    held: RankHeld
    #: what is there as each of its blocks starts backward, in one way to meet its repeats or in several
    moving: Sequence[Moving]
    #: outside of backward, then as the blocks start, of each in all ways; bytes
    totals: Sequence[Bytes]


class Fullest(NamedTuple):
    """Where a plan, or one of its ranks, holds most: the place of the total, of equal ones the first."""

    total: Bytes
    place: int
    moments: RankMoments


#: bytes, and whatever tells where they are held
Found = TypeVar("Found", bound=tuple[Any, ...])


def plan_alone(job: Job, plan: Plan) -> Plans:
    """Return a plan as numbers."""
    return plans_alone(job, row_alone(job, sized_columns(plan)))


def row_alone(job: Job, numbers: Mapping[str, Any]) -> Columns:
    """Return the row of a plan by its columns as numbers."""
    row: Any = Row({**numbers, **job.columns})
    c: Columns = row
    return c


def row_of(job: Job, columns: Columns, row: int) -> Plans:
    """Return one of several plans as numbers."""
    return plans_alone(job, row_alone(job, dict(zip(READ, columns.of_row(row, READ), strict=True))))


def plans_alone(job: Job, c: Columns, code: int | None = None) -> Plans:
    """Return a plan by its row, and by what ``code_of_plans`` makes of that, if it is known."""
    return plans_of(job, alike_of(job.flags, code_of_plans(c) if code is None else code), c, alone=True)


def ranks_of(plans: Plans) -> tuple[tuple[Rank, ...], Turning | None]:
    """Return the distinct ranks of a plan's pipeline, and what virtual stages hold that take turns."""
    c, pipelines = plans.c, plans.job.pipelines
    shape = c.pp, c.virtual_stages, c.pp_schedule in _BENT
    turning = None
    if plans.alike.turns:
        turning = turning_alone(pipelines, shape, way_of_turns(plans.alike, c))
    return ranks_alone(pipelines, shape), turning


def fullest(plans: Plans) -> Fullest:
    """Return where one plan holds most: of equal moments the first, on the first of equal ranks."""
    kinds, of_ranks = kinds_bytes(plans), ranks_read(plans, None)
    ranks, turning = ranks_of(plans)

    def look(place: int) -> Fullest:
        return fullest_of(plans, kinds, ranks[place], of_ranks, turning)

    if len(ranks) == 1:
        return look(0)
    return fullest_rank(look, None if turning else ceilings(plans, kinds, ranks, of_ranks), len(ranks))


def fullest_rank(look: Callable[[int], Found], highest: Sequence[Bytes] | None, ranks: int) -> Found:
    """Return what is found of the rank that holds most, of equal ones of the first.

    Args:
        look: returns what is found of a rank by its place, its bytes first.
        highest: what each holds at most; None: not known, all are looked at.
        ranks: how many there are.
    """
    if highest is None:
        return max(map(look, range(ranks)), key=_TOTAL)
    found: dict[int, Found] = {}
    most = 0.0
    for place in sorted(range(ranks), key=highest.__getitem__, reverse=True):
        if highest[place] < most:
            break
        found[place] = own = look(place)
        most = max(most, own[0])
    return max((found[place] for place in sorted(found)), key=_TOTAL)


def fullest_of(
    plans: Plans, kinds: KindBytes, rank: Rank, of_ranks: OfRanks, turning: Turning | None
) -> Fullest:
    """Return where one of a plan's ranks holds most."""
    moments = moments_of(plans, kinds, rank, of_ranks, turning)
    total = max(moments.totals)
    return Fullest(total, moments.totals.index(total), moments)


def moments_of(
    plans: Plans, kinds: KindBytes, rank: Rank, of_ranks: OfRanks, turning: Turning | None
) -> RankMoments:
    """Return what a rank holds at the moments at which it may peak."""
    held = rank_held(plans, kinds, rank, of_ranks)
    ways, totals = ways_of(plans, held), [held.stepping]
    moving: list[Moving] = []
    for start in rank.starts:
        own = moving_of(plans, kinds, held, start, turning, ways)
        moving.append(own)
        totals += own.totals(plans, held)
    return RankMoments(rank, held, moving, totals)


def parts_at(plans: Plans, moments: RankMoments, place: int) -> Sequence[Bytes]:
    """Return ``PARTS`` of what a rank holds at a moment, which the place of its total tells; bytes."""
    rank, held, every, _ = moments
    if not place:
        return outside_parts(plans, held)
    block, way = divmod(place - 1, len(every[0].ways))
    start, moving = rank.starts[block], every[block].in_way(way)
    lacking = lacking_of(plans, held, rank.counts, start, moving)
    return backward_parts(plans, held, moving, lacking)


def parts_alone(plans: Plans) -> Sequence[Bytes]:
    """Return ``PARTS`` where one plan holds most, bytes."""
    _, place, moments = fullest(plans)
    return parts_at(plans, moments, place)
