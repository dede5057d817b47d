"""One plan, whose numbers are Python's own: its ranks and their moments one after the other."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

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
    from collections.abc import Mapping, Sequence

    from parastrat.columns import Columns
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.backward import Moving
    from parastrat.memory.held import OfRanks, RankHeld
    from parastrat.memory.plans import Job, Plans
    from parastrat.plan import Plan
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.starts import Start
    from parastrat.ranks.turning import Turning
    from parastrat.units import Bytes

_TOTAL = itemgetter(0)
_BENT = frozenset(code_of(schedule) for schedule in V_SHAPED)


class Fullest(NamedTuple):
    """Where a plan, or one of its ranks, holds most."""

    total: Bytes
    rank: Rank
    held: RankHeld
    #: the block that runs backward, and what is there in one of some ways; None: the optimizer steps
    start: Start | None = None
    moving: Moving | None = None
    way: int = 0


def plan_alone(job: Job, plan: Plan) -> Plans:
    """Return a plan as numbers."""
    return numbers_alone(job, sized_columns(plan))


def row_alone(job: Job, columns: Columns, row: int) -> Plans:
    """Return one of several plans as numbers."""
    read = {name: getattr(columns, name) for name in READ}
    return numbers_alone(
        job, {name: each.item(row) if getattr(each, "shape", ()) else each for name, each in read.items()}
    )


def numbers_alone(job: Job, numbers: Mapping[str, Any]) -> Plans:
    """Return a plan by its columns."""
    c: Any = Row({**numbers, **job.columns})
    return plans_of(job, alike_of(job.flags, code_of_plans(c)), c, alone=True)


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
    if len(ranks) == 1:
        return fullest_of(plans, kinds, ranks[0], of_ranks, turning)
    if turning is not None:
        return max((fullest_of(plans, kinds, rank, of_ranks, turning) for rank in ranks), key=_TOTAL)
    highest, most = ceilings(plans, kinds, ranks, of_ranks), 0.0
    found: dict[int, Fullest] = {}
    for place in sorted(range(len(ranks)), key=highest.__getitem__, reverse=True):
        if highest[place] < most:
            break
        found[place] = own = fullest_of(plans, kinds, ranks[place], of_ranks, None)
        most = max(most, own.total)
    return max((found[place] for place in sorted(found)), key=_TOTAL)


def fullest_of(
    plans: Plans, kinds: KindBytes, rank: Rank, of_ranks: OfRanks, turning: Turning | None
) -> Fullest:
    """Return where one of a plan's ranks holds most: of equal moments the first."""
    held = rank_held(plans, kinds, rank, of_ranks)
    ways = ways_of(plans, held)
    most: Bytes = held.stepping
    found: tuple[Any, ...] = ()
    for start in rank.starts:
        moving = moving_of(plans, kinds, held, start, turning, ways)
        totals = moving.totals(plans, held)
        total = max(totals)
        if total > most:
            most, found = total, (start, moving, totals.index(total))
    return Fullest(most, rank, held, *found)


def parts_alone(plans: Plans) -> Sequence[Bytes]:
    """Return ``PARTS`` where one plan holds most, bytes."""
    _, rank, held, start, moving, way = fullest(plans)
    if start is None or moving is None:
        return outside_parts(plans, held)
    moving = moving.in_way(way)
    lacking = lacking_of(plans, held, rank.counts, start, moving)
    return backward_parts(plans, held, moving, lacking)
