"""What is there as blocks start backward, beside what their rank holds throughout."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add, sub
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.elementwise import chosen, larger, of_kinds, smaller, some, taken, where
from parastrat.memory.gathered import ENDS, EVERY_WAY, ONCE, by_way, gathered_bytes, of_way
from parastrat.memory.unmade import early_bytes, lacking_bytes, unmade_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.elementwise import Counts
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.gathered import When
    from parastrat.memory.held import RankHeld
    from parastrat.memory.plans import Plans
    from parastrat.ranks.starts import Start
    from parastrat.ranks.turning import Turning
    from parastrat.units import Bytes


@dataclass(slots=True)
class Moving:
    """What is there as a block runs backward, and what is gone; bytes, some in each of several ways."""

    ways: Sequence[When]
    #: what exists while the block runs, and of that what only gradients that are added to others make
    running: Bytes
    adding: Bytes
    #: by how much less a unit's gradients and what its backward reads are than both
    never: Bytes
    #: of all that is in flight; where virtual stages take turns that is not counted, but less than nothing
    #: is freed
    freed: Sequence[Bytes]
    #: parameters, and gradients that are not reduced
    gathered: Sequence[Bytes] | None
    #: gradients of a micro-batch before
    waiting: Sequence[Bytes] | None
    #: gradients that are not made yet where that leaves memory free, and what is added of such a one
    lacking: Sequence[Bytes] | None
    #: whole gradients that wait for the end of a step, but do not yet
    not_yet: Sequence[Bytes] | None

    def totals(self, plans: Plans, rank: RankHeld) -> Sequence[Bytes]:
        """Return all that is there on the rank, with what the allocator loses."""
        level, share, running = rank.level, plans.job.share, self.running - self.never
        gathered, waiting, lacking, not_yet = self.gathered, self.waiting, self.lacking, self.not_yet
        if gathered is None:
            moving = [running - gone for gone in self.freed]
        elif waiting is lacking is not_yet:
            # nothing else
            every = zip(gathered, self.freed, strict=True)
            return [level + share * (running + own - gone) for own, gone in every]
        else:
            moving = [running + own - gone for own, gone in zip(gathered, self.freed, strict=True)]
        if waiting is not None:
            moving = list(map(add, moving, waiting))
        if not_yet is not None:
            moving = list(map(sub, moving, not_yet))
        moving = [level + share * each for each in moving]
        return moving if lacking is None else list(map(sub, moving, lacking))

    def at(self, places: Any) -> Moving:
        """Return what is there at some of the blocks."""
        every = (getattr(self, name) for name in Moving.__slots__[1:])
        return Moving(self.ways, *(chosen(each, places) for each in every))

    def in_way(self, place: int) -> Moving:
        """Return what is there in one of the ways alone."""
        several = self.freed, self.gathered, self.waiting, self.lacking, self.not_yet
        one: Any = [None if each is None else (each[place],) for each in several]
        return Moving((self.ways[place],), self.running, self.adding, self.never, *one)

    def of_way(self, way: Any) -> Moving:
        """Return what is there in one way for each block, by its place."""
        every: Any = (of_way(getattr(self, name), way) for name in _IN_WAYS)
        return Moving(self.ways, self.running, self.adding, self.never, *every)


#: what ``Moving`` tells in each of the ways
_IN_WAYS = Moving.__slots__[Moving.__slots__.index("freed") :]


def ways_of(plans: Plans, rank: RankHeld) -> Sequence[When]:
    """Return at which repeats of blocks a rank may hold most.

    What a block's first repeat has made comes beside what others will make only where gradients come with
    their units: not under a pipeline that reduces once a step, and not in buckets. The end differs where a
    pipeline gathers unit by unit, and where gradients come one by one, or unit by unit: few ranks' shares
    of them may be more than activations that are made again; where later micro-batches find all of them it
    does only where virtual stages take turns. Both may where gradients that wait for the end of a step are
    not there yet. A graph reduces gradients as they are made, under a pipeline as well.
    """
    alike = rank.alike
    if alike.one_by_one is not False and (alike.turns is not False or some(rank.lacks)):
        return EVERY_WAY
    if alike.gathers is not False and (
        alike.piped is not True or plans.job.stack.gathers_in_graph or some(rank.early)
    ):
        return EVERY_WAY
    ends = alike.shards is not False and alike.piped is not False and some(plans.reshards)
    return ENDS if ends else ONCE


def moving_of(
    plans: Plans,
    kinds: KindBytes,
    rank: RankHeld,
    start: Start,
    turning: Turning | None,
    ways: Sequence[When],
) -> Moving:
    """Return what is there as a block starts, in some ways to meet its repeats.

    Args:
        plans: the plans.
        kinds: bytes of one repeat of each kind of block.
        rank: what the block's rank holds.
        start: the block.
        turning: what virtual stages hold; None: they do not take turns.
        ways: the repeats that are looked at.
    """
    alike, place, once = rank.alike, start.place, ways is ONCE
    own = kinds.kept[place]
    if turning is None:
        first, at_end = of_kinds(kinds.kept, start.freed, start.rows), 0.0 if once else rank.one - own
    else:
        first, at_end = _freed_in_turn(plans, kinds, rank, start, turning, ends=not once)
    freed = (first,) if once else by_way(ways, first, first + own, at_end)
    running, adding = kinds.running[place], 0.0
    if alike.casts is not False or alike.adds is not False:
        running, adding = _running_bytes(kinds, rank, start)
    gathered = waiting = lacking = not_yet = None
    never: Bytes = 0.0
    if alike.gathers is not False:
        never = kinds.never[place]
        gathered = gathered_bytes(plans, kinds, rank, start, ways)
        if alike.gathers is not True:
            gathered = [where(alike.gathers, each, 0.0) for each in gathered]
        if rank.early is not False and some(rank.early):
            not_yet = early_bytes(plans, rank, start, ways)
    # a plain number tells whether anything waits
    if type(rank.waiting) is not float or rank.waiting:
        waiting = by_way(ways, _waiting_bytes(rank, start), 0.0, 0.0)
    if rank.lacks is not False and some(rank.lacks):
        lacking = lacking_bytes(plans, rank, _unmade_bytes(kinds, rank, start, ways), adding)
    return Moving(ways, running, adding, never, freed, gathered, waiting, lacking, not_yet)


def _freed_in_turn(
    plans: Plans, kinds: KindBytes, rank: RankHeld, start: Start, turning: Turning, *, ends: bool
) -> tuple[Bytes, Bytes]:
    """Return what is gone as a block starts, and at the end, where some virtual stages take turns."""
    first: Bytes = 0.0
    # where all do what was freed counts with few micro-batches alone
    if rank.alike.turns is not True or some(rank.few > 0):
        first = of_kinds(kinds.kept, start.freed, start.rows)
    at_end = rank.one - kinds.kept[start.place] if ends else 0.0
    turn = _in_turn if rank.alike.turns is True else _some_in_turn
    return turn(plans, kinds, rank, start, (turning, first, at_end), ends=ends)


def _unmade_bytes(kinds: KindBytes, rank: RankHeld, start: Start, ways: Sequence[When]) -> Sequence[Bytes]:
    """Return the gradients that are not made yet where that leaves memory free."""
    frees = rank.alike.frees
    if frees is False:
        return (0.0,) * len(ways)
    unmade = unmade_bytes(kinds.coming, rank, rank.of_units, start, ways)
    return unmade if frees is True else [where(frees, each, 0.0) for each in unmade]


def _waiting_bytes(rank: RankHeld, start: Start) -> Bytes:
    """Return what waits of the micro-batch before: of FSDP2's root until the first unit reduces."""
    if rank.alike.gathers is False:
        return rank.waiting
    gone = start.ended | (start.of_unit & start.finds)
    return where(rank.alike.gathers & gone, 0.0, rank.waiting)


def _running_bytes(kinds: KindBytes, rank: RankHeld, start: Start) -> tuple[Bytes, Bytes]:
    """Return what exists while a block runs, and of that what adding its largest gradient makes."""
    running, adding = kinds.running[start.place], 0.0
    if rank.alike.casts is not False:
        # at the end of a forward its context still remembers the casts of all that is made again
        ended = rank.casts + kinds.ended[start.place]
        running = where(start.first & (rank.casts > 0), larger(running, ended), running)
    if rank.alike.adds is not False:
        more = larger(kinds.adding[start.place] - running, 0.0)
        adding = where(rank.alike.adds & (rank.steps > 1), more, 0.0)
        running = running + adding
    return running, adding


def _some_in_turn(
    plans: Plans,
    kinds: KindBytes,
    rank: RankHeld,
    start: Start,
    at: tuple[Turning, Bytes, Bytes],
    *,
    ends: bool,
) -> tuple[Bytes, Bytes]:
    """Return what ``_in_turn`` does where virtual stages take turns, else what was freed."""
    turning, *freed = at
    # as of many
    cells: Any = start
    some_of = np.flatnonzero(rank.alike.turns)
    own = (turning, *(chosen(column, some_of) for column in freed))
    found = _in_turn(plans, kinds, rank.at(some_of), cells.among(some_of), own, ends=ends)
    many = len(rank.alike.turns)
    first, at_end = (_put(*each, some_of, many) for each in zip(freed, found, strict=True))
    return first, at_end


def _put(column: Bytes, values: Bytes, places: Any, many: int) -> Any:
    """Return a column, or a number in so many places, with other values at some of them."""
    if type(column) is not np.ndarray or column.ndim < np.ndim(values):
        # of models whose ranks have one block each nothing was freed
        column = np.array(np.broadcast_to(column, (*np.shape(values)[:-1], many)))
    column[..., places] = values
    return column


def _in_turn(
    plans: Plans,
    kinds: KindBytes,
    rank: RankHeld,
    start: Start,
    at: tuple[Turning, Bytes, Bytes],
    *,
    ends: bool,
) -> tuple[Bytes, Bytes]:
    """Return less than nothing that was freed where virtual stages take turns: what they hold.

    Args:
        plans: the plans.
        kinds: bytes of one repeat of each kind of block.
        rank: what the block's rank holds.
        start: the block.
        at: what virtual stages hold, and what was freed as the block starts and at the end if none did.
        ends: whether the end is looked at.
    """
    turning, first, at_end = at
    alive = _most(kinds, turning.alive(start), start)
    splits = rank.alike.splits
    if some(rank.few > 0) and splits is not True:
        # a step of few micro-batches has no more in flight than these, beside gradients that wait
        all_of = rank.one * rank.few
        least = where(all_of > 0, smaller(alive, all_of - first), alive)
        alive = least if splits is False else where(splits, alive, least)
    if ends:
        ended = _most(kinds, turning.ended(start), start) + kinds.kept[start.place]
        # of other plans nothing differs at the end
        matters = rank.alike.one_by_one | rank.early
        if rank.alike.shards is not False:
            matters = matters | (rank.alike.shards & taken(plans.reshards, start.rows))
        at_end = where(matters, -ended, np.inf)
    return -alive, at_end


def _most(kinds: KindBytes, counts: Sequence[tuple[Counts, Counts]], start: Start) -> Bytes:
    """Return the most bytes of so many repeats, in some ways to weigh kinds."""
    rows = start.rows
    most, *others = (
        of_kinds(kinds.awaited, waiting, rows, of_kinds(kinds.kept, alive, rows))
        for alive, waiting in counts
    )
    for other in others:
        most = larger(most, other)
    return most
