"""When a pipeline rank's memory may peak in backward: as a block of each kind starts to run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Blocks that start backward, in arrays with these moments before the axes of the ranks."""

    #: the kind of the block, one for each moment
    kinds: Any
    #: where the rank has the block
    present: Any
    #: where nothing ran backward yet
    first: Any
    #: by kind, in the second axis, the repeats that ran backward before
    freed: Any
    #: the kind of the unit that runs backward next, -1 where none is left
    behind: Any
    #: where nothing is left to run backward
    last: Any


def moments_of(repeats: Any, kinds: Sequence[int], units: Sequence[bool]) -> Moments:
    """Return the moments at which ranks may peak.

    A unit that follows one of its kind is left out, unless that one was the first of all, without
    gradients: it finds less kept, and all else equal.

    Args:
        repeats: of each block of the model on each rank, the blocks in the last axis.
        kinds: of the blocks, counted from 0; a block outside units is the only one of its kind.
        units: which kinds are FSDP units.
    """
    shape, flat = repeats.shape[:-1], repeats.reshape(-1, len(kinds))
    kind_of, present = np.array(kinds), flat > 0
    ends = _ends(present)
    starts = []
    for kind in dict.fromkeys(reversed(kinds)):
        own = np.flatnonzero(kind_of == kind)
        starts += [(kind, own[among], there) for among, there in _starts(present[:, own], ends.last, own)]
    many, places = len(starts), np.array([place for _, place, _ in starts], dtype=np.int64)
    places = places.reshape(many, len(flat))
    return Moments(
        kinds=np.array([kind for kind, _, _ in starts], dtype=np.int64),
        present=np.array([there for _, _, there in starts], dtype=bool).reshape(many, *shape),
        first=(ends.last <= places).reshape(many, *shape),
        freed=_freed(flat, places, kind_of, len(units)).reshape(many, len(units), *shape),
        behind=_units_behind(present, places, kind_of, units).reshape(many, *shape),
        last=(ends.first >= places).reshape(many, *shape),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The places of each rank's first block and of its last; those of a rank without any lie outside."""

    first: Any
    last: Any


def _ends(present: Any) -> _Ends:
    places, some = present.shape[1], present.any(axis=1)
    return _Ends(
        first=np.where(some, present.argmax(axis=1), places),
        last=np.where(some, places - 1 - present[:, ::-1].argmax(axis=1), -1),
    )


def _starts(present: Any, last: Any, own: Any) -> Iterator[tuple[Any, Any]]:
    """Yield for each rank at which place of a kind backward meets it, and where there is one.

    That is the last place; and where nothing ran before that one, also the one before it.

    Args:
        present: of each rank, where it has one of the kind.
        last: the place of each rank's last block, of all kinds.
        own: the places of the kind.
    """
    many = len(own)
    for _ in range(2):
        there = present.any(axis=1)
        if not there.any():
            return
        newest = many - 1 - present[:, ::-1].argmax(axis=1)
        yield newest, there
        if many == 1:
            return
        alone = last <= own[newest]
        present = present & alone[:, None] & (np.arange(many) < newest[:, None])


def _freed(repeats: Any, places: Any, kind_of: Any, kinds: int) -> Any:
    """Return by moment and kind the repeats that each rank has behind the moment's place."""
    freed = np.empty((len(places), kinds, len(repeats)))
    ranks, every = np.arange(len(repeats)), np.arange(len(kind_of))
    for kind in range(kinds):
        own = np.flatnonzero(kind_of == kind)
        behind = np.zeros((len(repeats), len(own) + 1))
        behind[:, :-1] = repeats[:, own[::-1]].cumsum(axis=1)[:, ::-1]
        freed[:, kind] = behind[ranks, own.searchsorted(every, side="right")[places]]
    return freed


def _units_behind(present: Any, places: Any, kind_of: Any, units: Sequence[bool]) -> Any:
    """Return by moment the kind of the last unit before its place that each rank has, -1 for none."""
    is_unit = np.array(units)[kind_of]
    # short integers are quick to go through
    latest = np.maximum.accumulate(
        np.where(present & is_unit, np.arange(len(kind_of), dtype=np.int16), np.int16(-1)), axis=1
    )
    before = np.where(places > 0, latest[np.arange(len(present)), places - 1], -1)
    return np.where(before < 0, -1, kind_of[before])
