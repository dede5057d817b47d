"""The blocks that start backward on pipeline ranks, where memory may peak, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.elementwise import Counts
    from parastrat.ranks.moments import Moments
    from parastrat.units import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A block of one rank; ``CellsOf`` has the same of many plans' ranks, in arrays."""

    #: its place among what is known of kinds of block
    place: Any
    #: the repeats that ran backward before
    freed: Counts
    #: whether it is an FSDP unit
    of_unit: Mask
    #: whether nothing ran backward before, and whether nothing is left
    first: Mask
    last: Mask
    #: whether it is of the root unit, the last block, and not the first
    ended: Mask
    #: whether it may find gradients of another unit, or is none
    finds: Mask
    #: whether a repeat of its kind follows
    more: Mask
    #: the place of the unit that runs backward next among those of kinds, and whether there is one and the
    #: block is none itself
    behind: Any
    follows: Mask
    #: place of the rank among its pipeline's distinct ones, and of the kind on the rank among turns
    rank: Any
    turn: Any
    #: which plans and which of their ranks these are of; None: of one rank of one plan
    rows: Any = None
    ranks: Any = None


@dataclass(frozen=True, kw_only=True)
class Starts:
    """Those of many ranks, one rank behind another, in arrays; fields as of ``Start``, kinds for places."""

    kind: Any
    freed: Any
    of_unit: Any
    first: Any
    last: Any
    ended: Any
    finds: Any
    more: Any
    behind: Any
    follows: Any
    #: place of the rank among its pipeline's
    rank: Any
    #: of each pipeline how many there are, and the first
    counts: Any
    firsts: Any

    @cached_property
    def any_freed(self) -> list[bool]:
        """Of which kinds any repeats ran before."""
        found: list[bool] = self.freed.any(axis=1).tolist()
        return found

    def told(self, place: int, ranks: int) -> tuple[tuple[Start, ...], ...]:
        """Return those of each rank of one pipeline as plain numbers."""
        first = int(self.firsts[place])
        own = slice(first, first + int(self.counts[place]))
        kinds, width = self.kind[own].tolist(), len(self.freed)
        columns = {
            name: getattr(self, name)[own].tolist()
            for name in ("of_unit", "first", "last", "ended", "finds", "more", "behind", "follows", "rank")
        }
        freed = self.freed[:, own].T.tolist()
        every = [
            Start(
                place=kind,
                freed=tuple((own, count) for own, count in enumerate(freed[at]) if count),
                turn=columns["rank"][at] * width + kind,
                **{name: column[at] for name, column in columns.items()},
            )
            for at, kind in enumerate(kinds)
        ]
        return tuple(tuple(start for start in every if start.rank == rank) for rank in range(ranks))

    def foremost(self, most: int) -> Starts:
        """Return those of the first ranks of each pipeline, of each kind of block the first one alone."""
        key = self.rank + np.repeat(np.arange(len(self.counts)), self.counts) * (
            self.rank.max(initial=0) + 1
        )
        _, first = np.unique(key * (self.kind.max(initial=0) + 1) + self.kind, return_index=True)
        kept = np.sort(first[self.rank[first] < most])
        at = {
            field.name: getattr(self, field.name).take(kept, axis=-1)
            for field in fields(self)
            if field.name not in ("counts", "firsts")
        }
        pipelines = np.repeat(np.arange(len(self.counts)), self.counts)[kept]
        counts = np.bincount(pipelines, minlength=len(self.counts))
        return Starts(**at, counts=counts, firsts=np.cumsum(counts) - counts)


def starts_of(
    moments: Moments, held: Any, units: Sequence[bool], counted: Sequence[bool], ranks: Any
) -> Starts:
    """Return the blocks that start backward, of ranks that stand pipeline after pipeline.

    Args:
        moments: of all these ranks.
        held: by kind the repeats that each rank has.
        units: which kinds are FSDP units.
        counted: of them those with parameters.
        ranks: of each pipeline how many there are.
    """
    rank, kind, freed, behind = moments.rank, moments.kind, moments.freed, moments.behind
    of_unit, first, last = np.array(units)[kind], moments.first, moments.last
    met = (freed[np.flatnonzero(counted)] > 0).any(axis=0)
    pipelines = np.repeat(np.arange(len(ranks)), ranks)
    counts = np.bincount(pipelines[rank], minlength=len(ranks))
    return Starts(
        kind=kind,
        freed=np.ascontiguousarray(freed),
        of_unit=of_unit,
        first=first,
        last=last,
        ended=~of_unit & last & ~first,
        finds=~of_unit | met,
        more=held[kind, rank] - freed[kind, np.arange(len(kind))] > 1,
        behind=np.maximum(behind, 0),
        follows=(behind >= 0) & ~of_unit,
        rank=rank - (np.cumsum(ranks) - ranks)[pipelines[rank]],
        counts=counts,
        firsts=np.cumsum(counts) - counts,
    )


class CellsOf:
    """Blocks that start backward on the ranks of many plans, in arrays; what is read is taken then.

    As ``Start`` has it of one.
    """

    def __init__(self, starts: Starts, items: Any, rows: Any, at: tuple[int, Any]) -> None:
        """Set which blocks these are.

        Args:
            starts: of all pipelines.
            items: which of them each is.
            rows: which plan each is of.
            at: how many plans there are, and of each its first rank among those of all.
        """
        self.starts, self.items, self.rows, self.plans = starts, items, rows, at
        self.ranks = self.rank + at[1].take(rows)
        self.place = self.kind * at[0] + rows

    def among(self, places: Any) -> CellsOf:
        """Return some of them."""
        return CellsOf(self.starts, self.items.take(places), self.rows.take(places), self.plans)

    @property
    def turn(self) -> Any:
        return self.rank * len(self.starts.freed) + self.kind

    @cached_property
    def freed(self) -> Counts:
        counts = zip(self.starts.freed, self.starts.any_freed, strict=True)
        return [(kind, own.take(self.items)) for kind, (own, some) in enumerate(counts) if some]

    def __getattr__(self, name: str) -> Any:
        column = getattr(self.starts, name).take(self.items)
        if name == "behind":
            column = column * self.plans[0] + self.rows
        self.__dict__[name] = column
        return column
