"""When a pipeline rank's memory may peak in backward: as a block of each kind starts to run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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

    def at(self, pipelines: Any) -> Moments:
        """Return the moments of the ranks of some pipelines, which the last axis tells."""
        return self._each(lambda column: column.take(pipelines, axis=-1))

    def ranks(self, most: int) -> Moments:
        """Return the moments of the first ranks of every pipeline."""
        return self._each(lambda column: column[..., :most, :])

    def foremost(self) -> Moments:
        """Return of each kind of block the first of its moments alone."""
        places = np.sort(np.unique(self.kinds, return_index=True)[1])
        return replace(self._each(lambda column: column[places]), kinds=self.kinds[places])

    def _each(self, chosen: Callable[[Any], Any]) -> Moments:
        return Moments(
            kinds=self.kinds,
            present=chosen(self.present),
            first=chosen(self.first),
            freed=chosen(self.freed),
            behind=chosen(self.behind),
            last=chosen(self.last),
        )


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
    of_kind = np.equal.outer(np.array(kinds), np.arange(len(units)))
    held = flat[:, :, None] * of_kind
    freed = held[:, ::-1].cumsum(axis=1)[:, ::-1] - held
    present, ran = flat > 0, freed.any(axis=2)
    behind, left = _units_behind(present, kinds, units), flat.cumsum(axis=1) > flat
    ranks = np.arange(len(flat))
    starts = []
    for kind in dict.fromkeys(reversed(kinds)):
        own = np.flatnonzero(of_kind[:, kind])
        starts += [(kind, own[among], there) for among, there in _starts(present[:, own], ran[:, own])]
    many, places = len(starts), np.array([place for _, place, _ in starts], dtype=np.int64)
    places = places.reshape(many, len(flat))
    return Moments(
        kinds=np.array([kind for kind, _, _ in starts], dtype=np.int64),
        present=np.array([there for _, _, there in starts], dtype=bool).reshape(many, *shape),
        first=~ran[ranks, places].reshape(many, *shape),
        freed=freed[ranks, places].transpose(0, 2, 1).reshape(many, len(units), *shape),
        behind=behind[ranks, places].reshape(many, *shape),
        last=~left[ranks, places].reshape(many, *shape),
    )


def _starts(present: Any, ran: Any) -> Iterator[tuple[Any, Any]]:
    """Yield for each rank at which place of a kind backward meets it, and where there is one.

    That is the last place; and where nothing ran before that one, also the one before it.
    """
    many = present.shape[1]
    for _ in range(2):
        there = present.any(axis=1)
        if not there.any():
            return
        newest = many - 1 - present[:, ::-1].argmax(axis=1)
        yield newest, there
        if many == 1:
            return
        alone = ~ran[np.arange(len(ran)), newest]
        present = present & alone[:, None] & (np.arange(many) < newest[:, None])


def _units_behind(present: Any, kinds: Sequence[int], units: Sequence[bool]) -> Any:
    """Return for each place the kind of the last unit before it that the rank has, -1 for none."""
    is_unit = np.array([units[kind] for kind in kinds])
    places = np.where(present & is_unit, np.arange(len(kinds)), -1)
    latest = np.maximum.accumulate(places, axis=1)
    before = np.concatenate([np.full((len(present), 1), -1), latest[:, :-1]], axis=1)
    return np.where(before < 0, -1, np.array(kinds)[before])
