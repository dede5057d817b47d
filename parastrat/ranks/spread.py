"""The distinct ranks of pipelines: one plan's one by one as numbers, or those of many plans in arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.ranks.load import load_of
from parastrat.ranks.starts import CellsOf

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.elementwise import Counts
    from parastrat.ranks.chains import Shape
    from parastrat.ranks.load import RankLoad
    from parastrat.ranks.pipelines import Pipelines
    from parastrat.ranks.starts import Start


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank with the blocks that start backward on it; or all ranks of many plans, plan after plan."""

    load: RankLoad
    #: the repeats of its kinds of block
    counts: Counts
    starts: tuple[Start, ...]
    #: the plan of each rank; None: of one rank
    rows: Any = None


class Spread(NamedTuple):
    """The ranks of many plans."""

    rank: Rank
    #: the pipeline of each plan
    at: Any
    #: of each plan its first rank, and the first block of these that starts backward
    first_ranks: Any
    first_starts: Any


def ranks_alone(pipelines: Pipelines, shape: Shape) -> tuple[Rank, ...]:
    """Return the distinct ranks of one pipeline; of equal ones the first."""
    known = pipelines.told_ranks
    if shape not in known:
        place = pipelines.place_of(shape)
        numbers = pipelines.ranks_of(shape).tolist()
        table, _ = pipelines.table_of(shape)
        starts = table.starts.told(place, len(numbers))
        # what a rank has none of is not looked at
        loads = [load_of(pipelines, tuple(number or 0 for number in own)) for own in numbers]
        counts = [tuple((kind, own) for kind, own in enumerate(load.repeats) if own) for load in loads]
        known[shape] = tuple(map(Rank, loads, counts, starts))
    ranks: tuple[Rank, ...] = known[shape]
    return ranks


def ranks_spread(pipelines: Pipelines, c: Columns, *, foremost: bool = False) -> Spread:
    """Return the distinct ranks of many plans; of the foremost ranks alone how blocks start backward."""
    table, at = pipelines.table(c)
    found = table.foremost if foremost else table.starts
    first_ranks, rows, ranks = _spread(table.firsts, table.counts, at)
    first_starts, of_plans, items = _spread(found.firsts, found.counts, at)
    starts: Any = CellsOf(found, items, of_plans, (len(at), first_ranks))
    load = load_of(pipelines, table.numbers, ranks)
    return Spread(
        Rank(load, tuple(enumerate(load.repeats)), (starts,), rows), at, first_ranks, first_starts
    )


def _spread(firsts: Any, counts: Any, at: Any) -> tuple[Any, Any, Any]:
    """Return of each plan its first entry among those of all, and of each entry its plan and its place.

    Args:
        firsts: the place of each pipeline's first entry.
        counts: how many it has.
        at: the pipeline of each plan.
    """
    several = counts[at]
    begin = np.cumsum(several) - several
    rows = np.repeat(np.arange(len(at)), several)
    return begin, rows, np.arange(len(rows)) + (firsts[at] - begin).take(rows)
