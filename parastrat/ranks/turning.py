"""What virtual stages of ranks hold that take turns: for one rank as numbers, for many plans' in arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.ranks.flights import WAYS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.elementwise import Counts
    from parastrat.ranks.chains import Shape
    from parastrat.ranks.flights import Turns
    from parastrat.ranks.pipelines import Pipelines
    from parastrat.ranks.starts import Start


class Turning(NamedTuple):
    """Repeats of kinds that are alive, and of kinds that wait, in each of some ways to weigh them.

    Of one pipeline lists of ways by place; of many plans ways with arrays over places.
    """

    #: as blocks run, by ``turn`` of a start
    at_starts: Any
    #: as the first stage of a rank is through, by ``rank`` of a start
    at_ends: Any
    #: of each plan the first place of its pipeline in either; None: of one pipeline
    first_starts: Any = None
    first_ends: Any = None

    def alive(self, start: Start) -> Any:
        """Return the repeats as a block begins to run backward, in each way."""
        if start.rows is None:
            return self.at_starts[start.turn]
        return _at(self.at_starts, self.first_starts.take(start.rows) + start.turn)

    def ended(self, start: Start) -> Any:
        """Return the repeats as the first stage of the block's rank is through, in each way."""
        if start.rows is None:
            return self.at_ends[start.rank]
        return _at(self.at_ends, self.first_ends.take(start.rows) + start.rank)


def _at(ways: Sequence[tuple[Counts, Counts]], places: Any) -> Sequence[tuple[Counts, Counts]]:
    return [
        (
            [(kind, own.take(places)) for kind, own in alive],
            [(kind, own.take(places)) for kind, own in waiting],
        )
        for alive, waiting in ways
    ]


def turning_alone(pipelines: Pipelines, shape: Shape, way: int) -> Turning:
    """Return what the ranks of one pipeline hold in one of ``flights.WAYS``."""
    place = pipelines.place_of(shape)
    known = pipelines.told_turns
    if (place, way) not in known:
        few, split = WAYS[way]
        at_starts, at_ends = _flat(pipelines.turns_of(place, split=split)[few])
        many = len(pipelines.kinds.blocks)
        known[place, way] = Turning(
            *([_told(place, many) for place in np.moveaxis(each, -1, 0)] for each in (at_starts, at_ends))
        )
    turning: Turning = known[place, way]
    return turning


def turning_of(pipelines: Pipelines, plans: tuple[Any, Any], rows: Any, *, foremost: bool) -> Turning:
    """Return what the ranks of many plans' pipelines hold.

    Args:
        pipelines: of the model.
        plans: the places of their pipelines, and those of their ways among ``flights.WAYS``.
        rows: the plans whose virtual stages take turns.
        foremost: of the first ranks alone, as they begin their first backward.
    """
    at, ways = plans
    codes = (at * len(WAYS) + ways).take(rows)
    table = _table_with(pipelines, np.flatnonzero(np.bincount(codes)).tolist(), foremost=foremost)
    own = np.zeros(len(at), dtype=np.int64)
    own[rows] = codes
    return Turning(table.at_starts, table.at_ends, table.first_starts.take(own), table.first_ends.take(own))


class TurningTable(NamedTuple):
    """What some pipelines hold in some ways, each of which has a number, as ``Turning`` has it of plans."""

    codes: frozenset[int]
    at_starts: Any
    at_ends: Any
    #: the first place of each by its number
    first_starts: Any
    first_ends: Any


def _table_with(pipelines: Pipelines, codes: list[int], *, foremost: bool) -> TurningTable:
    """Return a table with some pipelines in some ways, which has others as well that were asked for before.

    Where backward is whole nothing waits, of which a table of such ways alone has nothing.
    """
    tables, key = (
        pipelines.turning_tables,
        (foremost, frozenset(WAYS[code % len(WAYS)][1] for code in codes)),
    )
    table: TurningTable | None = tables.get(key)
    if table is None or not table.codes.issuperset(codes):
        every = frozenset(codes) if table is None else table.codes.union(codes)
        table = tables[key] = _table_of(pipelines, every, foremost=foremost)
    return table


def _table_of(pipelines: Pipelines, codes: frozenset[int], *, foremost: bool) -> TurningTable:
    told, flat = (pipelines.firsts_of if foremost else pipelines.turns_of), []
    many = len(pipelines.kinds.blocks)
    for code in sorted(codes):
        place, way = divmod(code, len(WAYS))
        few, split = WAYS[way]
        flat.append(_flat(told(place, split=split)[few]))
    at_starts, first_starts = _behind([each for each, _ in flat], many)
    at_ends, first_ends = _behind([each for _, each in flat], many)
    firsts = np.zeros((2, max(codes) + 1), dtype=np.int64)
    firsts[:, sorted(codes)] = first_starts, first_ends
    return TurningTable(codes, at_starts, at_ends, *firsts)


def _flat(turns: Turns) -> tuple[Any, Any]:
    """Return ways before kinds that are held before ranks, of each the kinds that run."""
    at_kinds = turns.at_kinds.transpose(0, 2, 3, 1)
    return at_kinds.reshape(*at_kinds.shape[:2], -1), turns.ending


def _behind(several: Sequence[Any], many: int) -> tuple[Sequence[tuple[Counts, Counts]], Any]:
    """Return arrays behind each other in their last axis as ``Turning`` has them, and where each begins."""
    sizes = np.array([each.shape[-1] for each in several])
    ways = _without_less(np.concatenate(several, axis=-1))
    return [_counts(way, way.any(axis=1), many) for way in ways], np.cumsum(sizes) - sizes


def _told(ways: Any, many: int) -> list[tuple[Counts, Counts]]:
    """Return the repeats of kinds at one place as plain numbers."""
    return [_counts(way.tolist(), way != 0, many) for way in _without_less(ways)]


def _counts(way: Sequence[Any], some: Any, many: int) -> tuple[Counts, Counts]:
    """Return repeats that are alive, and such as wait, of all kinds one after the other, without none."""
    found = [(place, own) for place, (own, any_of) in enumerate(zip(way, some, strict=True)) if any_of]
    alive, waiting = ([each for each in found if (each[0] < many) == first] for first in (True, False))
    return alive, [(place - many, own) for place, own in waiting]


def _without_less(ways: Any) -> list[Any]:
    """Return the ways without those in which nowhere more is alive than in one before, and as much waits.

    What waits may take less than nothing: a backward of inputs may free more than it leaves.
    """
    kinds, kept = ways.shape[1] // 2, list[Any]()
    for way in ways:
        if not any(
            (way[:kinds] <= before[:kinds]).all() and (way[kinds:] == before[kinds:]).all()
            for before in kept
        ):
            kept.append(way)
    return kept
