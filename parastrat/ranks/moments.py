"""When a pipeline rank's memory may peak in backward: as a block of each kind starts to run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Blocks that start backward, those of one rank behind those of another."""

    rank: Any
    #: the kind of the block
    kind: Any
    #: where nothing ran backward yet
    first: Any
    #: by kind, in the first axis, the repeats that ran backward before
    freed: Any
    #: the kind of the unit that runs backward next, -1 where none is left
    behind: Any
    #: where nothing is left to run backward
    last: Any


def moments_of(repeats: Any, kinds: Sequence[int], units: Sequence[bool]) -> Moments:
    """Return the moments at which ranks may peak: of each rank kinds as they come last in the chain.

    A unit that follows one of its kind is left out, unless that one was the first of all, without
    gradients: it finds less kept, and all else equal.

    Args:
        repeats: of each block of the model on each rank, the blocks in the last axis.
        kinds: of the blocks, counted from 0; a block outside units is the only one of its kind.
        units: which kinds are FSDP units.
    """
    # a rank has a few of a model's blocks, which stand here rank after rank
    rank, block = (repeats > 0).nonzero()
    kind, places, many = np.array(kinds)[block], np.arange(len(rank)), len(units)
    begins, ends = np.diff(rank, prepend=-1) > 0, np.diff(rank, append=len(repeats)) > 0
    chosen = _chosen(rank * many + kind, ends)
    # how far behind the last block of each kind comes in the chain, and of a kind the later block first
    sooner = np.array([kinds[::-1].index(own) for own in range(many)])
    chosen = chosen[np.lexsort((-chosen, sooner[kind[chosen]], rank[chosen]))]
    counts = np.zeros((many, len(rank) + 1))
    np.cumsum(np.equal.outer(np.arange(many), kind) * repeats[rank, block], axis=1, out=counts[:, 1:])
    # where the blocks of each one's rank begin, and those behind them
    run = (np.cumsum(begins) - 1)[chosen]
    first, behind = np.flatnonzero(begins)[run], np.flatnonzero(ends)[run] + 1
    latest = np.full(len(rank) + 1, -1)
    np.maximum.accumulate(np.where(np.array(units)[kind], places, -1), out=latest[1:])
    unit = latest[chosen]
    return Moments(
        rank=rank[chosen],
        kind=kind[chosen],
        first=ends[chosen],
        freed=counts[:, behind] - counts[:, chosen + 1],
        behind=np.where(unit >= first, kind[unit], -1),
        last=begins[chosen],
    )


def _chosen(codes: Any, ends: Any) -> Any:
    """Return the last block of each kind on each rank, and the one before it if that ends the rank.

    Args:
        codes: of each block, the same for those of one kind on one rank.
        ends: which blocks are the last of their ranks.
    """
    places, last = np.arange(len(codes)), np.zeros((2, int(codes.max(initial=0)) + 1), dtype=np.int64)
    others = np.flatnonzero(~ends)
    # of repeated places the last write stays
    last[0, codes] = places
    last[1, codes[others]] = others
    newest, before = last[:, codes]
    return np.flatnonzero((newest == places) | (ends[newest] & (before == places) & ~ends))
