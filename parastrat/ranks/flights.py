"""What a pipeline rank holds of each of its virtual stages as backwards begin, by schedule.

Counted in a step of many micro-batches, in which the orders repeat themselves (``timeline.orders``, whose
sources these are) and the most that is reached does not hang on how many there are; and in one of as many
as there are ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Flights:
    """Micro-batches on each rank, in arrays with ranks before moments before the rank's virtual stages."""

    #: whose activations are held
    alive: Any
    #: of these such that wait for the gradients of weights; no more where no schedule splits backward
    awaited: Any
    #: the virtual stage that runs backward, by rank and moment
    running: Any


#: steps of many micro-batches, and then of as few as ranks
STEPS = (False, True)
#: in either, with backward whole and split
WAYS = tuple(product(STEPS, (False, True)))


@cache
def flights(pp: int, chunks: int, *, is_bent: bool, split: bool) -> tuple[Flights, Any]:
    """Return those in each of ``STEPS``, the ranks in one behind those in the other.

    And by rank and virtual stage where weights wait for anything: not on the first stage, which has no
    inputs whose gradients would come first.
    """
    ways = [
        v_shaped(pp, split=split, few=few) if is_bent else looped(pp, chunks, split=split, few=few)
        for few in STEPS
    ]
    waits = np.full((len(STEPS) * pp, chunks), split)
    waits[::pp, 0] = False
    together = Flights(
        alive=np.concatenate([way.alive for way in ways]).astype(float),
        awaited=np.concatenate([way.awaited for way in ways]).astype(float),
        running=np.concatenate([way.running for way in ways]),
    )
    return together, waits


def looped(pp: int, chunks: int, *, split: bool, few: bool = False) -> Flights:
    """Return those of the interleaved schedules, of which ``split`` is the one without bubbles.

    A rank holds most where a round of its forwards, its backwards or its weights ends: between those
    moments the numbers grow or fall evenly.
    """
    rank = np.arange(pp)[:, None]
    hop = 1 if split else 2
    ends = (-1 - hop * (pp - 1 - rank)) % pp
    # weights have rounds of their own where backward is split
    turns = [np.zeros_like(rank), ends, *[rank] * split]
    offsets = np.concatenate([*turns, *((turn - 1) % pp for turn in turns)], axis=1)
    rounds = np.arange(2 * chunks) % (chunks if few else 2 * chunks)
    place = (offsets[:, None, :] + pp * rounds[None, :, None]).reshape(pp, -1)
    ran = (chunks - 1) * pp + hop * (pp - 1 - rank) + place + 1
    forwards = _of_chunks(np.minimum(ran, chunks * pp) if few else ran, pp, chunks)
    backwards = _of_chunks(place, pp, chunks)[..., ::-1]
    ended = _of_chunks(np.maximum(place - rank, 0), pp, chunks)[..., ::-1] if split else backwards
    return Flights(
        alive=forwards - ended,
        awaited=backwards - ended,
        running=chunks - 1 - place // pp % chunks,
    )


def v_shaped(pp: int, *, split: bool, few: bool = False) -> Flights:
    """Return those of the V schedules: ZBV, where backward is ``split``, else DualPipeV.

    In turn a micro-batch runs down and one up, and each time one that came before it backward. At the end
    of ZBV a rank has the gradients of inputs of as many as there are ranks before it, down and up, whose
    weights wait. DualPipeV has no steps of ``few``, which are told as others.
    """
    rank = np.arange(pp)
    if split and few:
        alive = [[0 * rank + pp, rank], [0 * rank + pp, rank + 1], [0 * rank + pp, rank]]
        awaited = [[0 * rank, 0 * rank]] * 3
        running = [0, 1, 0]
    elif split:
        alive = [[2 * pp - rank, rank], [2 * pp - rank - 1, rank + 1], [0 * rank + pp, rank]]
        awaited = [[0 * rank, 0 * rank], [0 * rank, 0 * rank], [rank, rank]]
        running = [0, 1, 0]
    else:
        alive = [[2 * pp - rank, rank + 1]] * 3
        awaited = [[0 * rank, 0 * rank]] * 3
        running = [0, 1, 1]
    return Flights(
        alive=np.moveaxis(np.array(alive), -1, 0),
        awaited=np.moveaxis(np.array(awaited), -1, 0),
        running=np.broadcast_to(running, (pp, len(running))),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What is held where virtual stages take turns, in repeats of each kind: alive, and then waiting.

    First come ways to weigh the kinds, each of which tells of all moments the one of most.
    """

    #: as a block of each kind runs backward, and none behind it in its stage is kept; kinds before groups.
    #: Behind the ways also what is alive as the group's first rank begins its first backward
    at_kinds: Any
    #: as the first stage of a rank is through
    ending: Any


def turns(
    held: Any, of_kind: Any, weights: Any, groups: Sequence[Sequence[int]], *, is_bent: bool, split: bool
) -> tuple[Turns, ...]:
    """Return what ranks hold at the moments of most, in each of ``STEPS``.

    The chunk that runs waits as well: as the last of its blocks runs the others do, and that one begins to.

    Args:
        held: repeats of each block, virtual stages of a rank before ranks before blocks.
        of_kind: where a block, in the first axis, is of a kind.
        weights: what a repeat of each kind keeps alive, and then what it waits with; a row for each way.
        groups: ranks that are not told apart, each from its first.
        is_bent: the chain runs down the ranks and up again.
        split: backward is split.
    """
    (chunks, pp), kinds = held.shape[:2], of_kind.shape[1]
    flown, waits = flights(pp, chunks, is_bent=is_bent, split=split)
    # most stages hold the same blocks, which are looked at once
    places: dict[bytes, int] = {}
    flat = held.swapaxes(0, 1).reshape(pp * chunks, -1)
    at = np.array([places.setdefault(own.tobytes(), len(places)) for own in flat]).reshape(pp, chunks)
    stages = np.frombuffer(b"".join(places), dtype=flat.dtype).reshape(len(places), -1)
    counts, (has, behind) = (stages @ of_kind)[at], (each[at] for each in behind_last(stages, of_kind))
    ranks, rows = _in_steps(pp)
    of_ranks = counts[ranks[:, 0]]
    every = np.zeros((*flown.running.shape, 2 * kinds))
    every[..., :kinds] = flown.alive @ of_ranks
    if split:
        waiting = of_ranks * waits[..., None]
        every[..., kinds:] = flown.awaited @ waiting + waiting[rows, flown.running]
    worth = every @ weights.T
    # what ran stays where it waits
    gone, later = (
        np.where(waits[:pp, :, None, None], 0.0, behind),
        _frees_later(counts, waits[:pp], weights),
    )
    # a moment is none of a kind that its stage has not
    less = gone @ weights[:, :kinds].T + later[..., None] * weights[:, kinds:].T
    less = np.where(has[..., None], less, np.inf)
    score = worth[:, :, None] - less[ranks, flown.running]
    told = _groups_of(groups, pp)
    rank, moment, found = _best(score, told)
    # behind the ways what is alive as in ``firsts.first_backwards``, of each group's first rank
    at_kinds = np.zeros((*rank.shape[:2], rank.shape[2] + 1, 2 * kinds))
    most = at_kinds[:, :, :-1]
    most[...] = every[rank, moment]
    own, runs = (rank % pp, flown.running[rank, moment]), np.arange(kinds)
    most[..., :kinds] -= gone[*own, runs[:, None]]
    most[:, runs, :, kinds + runs] -= later[*own, runs[:, None]].swapaxes(0, 1)
    most[np.isinf(found)] = 0
    head = told.order[told.starts]
    own = head % pp, flown.running[head, 0]
    begun = every[head, 0, None, :kinds] - behind[own]
    at_kinds[:, :, -1, :kinds] = np.where(has[own][..., None], begun, 0.0)
    filled: Any = stages.any(axis=1)
    first = filled[at].argmax(axis=1)[ranks[:, 0]]
    score = np.where((flown.running == first[:, None])[..., None], worth, -np.inf)
    rank, moment, _ = _best(score, told)
    ending = every[rank, moment]
    ending[..., :kinds] -= counts[rank % pp, first[rank]]
    # ways before kinds that run before kinds that are held before groups
    several, at_ends = at_kinds.transpose(2, 1, 3, 0), ending.transpose(1, 2, 0)
    steps = (slice(begin, begin + len(groups)) for begin in range(0, len(rank), len(groups)))
    return tuple(Turns(at_kinds=several[..., step], ending=at_ends[..., step]) for step in steps)


def _frees_later(counts: Any, waits: Any, weights: Any) -> Any:
    """Return the repeats of each kind that as it begins to run do not wait yet, but still hold more.

    Those are of kinds that wait with less than they keep: a head's loss is gone behind its backward alone.
    """
    kinds = counts.shape[-1]
    return counts * (weights[0, kinds:] < 0) * waits[..., None]


@cache
def _in_steps(pp: int) -> tuple[Any, Any]:
    """Return the ranks of a pipeline in each of ``STEPS``, one behind another, and their places there."""
    places = np.arange(len(STEPS) * pp)[:, None]
    return places % pp, places


def behind_last(stages: Any, of_kind: Any) -> tuple[Any, Any]:
    """Return which kinds each virtual stage has, and the repeats behind the last block of each it has."""
    # a stage has a few of a model's blocks
    stage, block = stages.nonzero()
    places = np.arange(1, len(stage) + 1)
    counts = np.zeros((len(stage) + 1, of_kind.shape[1]))
    np.cumsum(of_kind[block] * stages[stage, block][:, None], axis=0, out=counts[1:])
    last, end = (
        np.zeros((len(stages), of_kind.shape[1]), dtype=np.int64),
        np.zeros(len(stages), dtype=np.int64),
    )
    # of repeated places the last write stays
    last[stage, of_kind.argmax(axis=1)[block]] = places
    end[stage] = places
    return last > 0, counts[end][:, None] - counts[last]


class _Groups(NamedTuple):
    """Groups of ranks in each of ``STEPS``, one behind another."""

    #: the ranks, and of each group the place of its first one and how many there are
    order: Any
    starts: Any
    sizes: Any


def _groups_of(groups: Sequence[Sequence[int]], pp: int) -> _Groups:
    sizes = np.array([len(group) for group in groups] * len(STEPS))
    ranks = [rank + pp * step for step in range(len(STEPS)) for group in groups for rank in group]
    return _Groups(order=np.array(ranks), starts=np.cumsum(sizes) - sizes, sizes=sizes)


def _best(score: Any, groups: _Groups) -> tuple[Any, Any, Any]:
    """Return the rank of each group and its moment that score highest, and the score.

    Args:
        score: ranks in each of ``STEPS`` before moments before whatever is told apart.
        groups: of the ranks; their first one counts of equals.
    """
    order, starts, sizes = groups
    # all that is told apart in one axis
    moments, best = (each.reshape(len(score), -1) for each in (score.argmax(axis=1), score.max(axis=1)))
    among = best[order]
    most = np.maximum.reduceat(among, starts, axis=0)
    first = np.where(among == most.repeat(sizes, axis=0), np.arange(len(order))[:, None], len(order))
    rank = order[np.minimum.reduceat(first, starts, axis=0)]
    moment = moments[rank, np.arange(rank.shape[1])]
    shape = len(starts), *score.shape[2:]
    return rank.reshape(shape), moment.reshape(shape), most.reshape(shape)


def _of_chunks(count: Any, pp: int, chunks: int) -> Any:
    """Return of the first so many micro-batches those of each chunk, which take turns by ``pp``."""
    rounds, rest = np.divmod(count, pp * chunks)
    begun = np.maximum(rest[..., None] - pp * np.arange(chunks), 0)
    return rounds[..., None] * pp + np.minimum(begun, pp)
