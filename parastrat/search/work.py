"""What micro-batches take in blocks: a table for all meshes of a space, and all searches of its plans."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost import BlockSeconds, Heaviest, block_seconds, heaviest_of, micro_batch_s
from parastrat.search.rows import stacked
from parastrat.units import MOST_RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Recompute
    from parastrat.ranks.heaviest import HeavyRanks

#: of so many times fewer rows blocks take are found apart from those of the whole space
_FEW = 4


@dataclass(frozen=True, kw_only=True)
class Work:
    """The seconds of blocks, which hang on what divides them and on the micro-batch alone.

    They are those of a job's model on its devices, however much memory there is, and wherever states are.
    """

    facts: Facts
    #: the space's meshes, or rows of it, whose widths are meant, and what has the sizes of micro-batches
    meshes: Columns
    batches: Columns
    #: whether one search alone asks for it
    once: bool = False
    #: whether these are but some rows of the space
    partial: bool = False
    #: of such a job on fewer nodes, whose widths are found as well if any are
    beside: Work | None = None

    def among(self, rows: Columns) -> Work:
        """Return that of some rows' widths and sizes, where nobody else asks and they are few of all."""
        few = _FEW * len(rows.pp) <= len(self._every.pp) * len(self.sizes)
        if not (self.once and few) or "_seconds" in self.__dict__:
            return self
        return Work(facts=self.facts, meshes=rows, batches=rows, partial=True)

    def of(self, columns: Columns) -> BlockSeconds:
        """Return the seconds of rows of the space, or of their plans."""
        size = np.searchsorted(self.sizes, columns.micro_batch_size)
        return self._seconds.rows(self._widths[columns.width] * len(self.sizes) + size)

    def found(self, plans: Columns) -> BlockSeconds | None:
        """Return the seconds of plans that divide blocks as those of the space do, if all were found."""
        if "_seconds" not in self.__dict__:
            return None
        every, sizes = _divided(self._every), self.sizes
        order, wanted = every.argsort(), _divided(plans)
        width = order.take(every.searchsorted(wanted, sorter=order), mode="clip")
        size = np.minimum(sizes.searchsorted(plans.micro_batch_size), len(sizes) - 1)
        if (every[width] != wanted).any() or (sizes[size] != plans.micro_batch_size).any():
            return None
        return self._seconds.rows(width * len(sizes) + size)

    def learn(self, others: Work) -> None:
        """Take what others found of a job that differs in nodes and in where states are, if it is all."""
        known = None if "_seconds" in self.__dict__ else others.found(self._rows)
        if known is not None:
            self.__dict__["_seconds"] = known

    def micro_batches(self, meshes: Columns, policy: Recompute) -> Iterator[tuple[Any, ...]]:
        """Yield what ``micro_batch_s`` does of some meshes, size after size."""
        rows, ranks = self._rows.joined({"recompute": code_of(policy)}), self._ranks
        at = ranks.stage_places(meshes) * len(self._every.pp) + self._widths.take(meshes.width)
        for parts in micro_batch_s(rows, self._seconds, ranks, len(self.sizes)):
            yield tuple(part.take(at) for part in parts)

    def heaviest(self, facts: Facts) -> Heaviest:
        """Return of each pipeline the rank that floors tell of, for a job whose blocks take as long."""
        return self._heaviest.setdefault(id(facts), Heaviest(facts=facts, ranks=self._ranks))

    @cached_property
    def _heaviest(self) -> dict[int, Heaviest]:
        """By the identities of jobs, which are kept with it."""
        return {}

    @cached_property
    def _ranks(self) -> HeavyRanks:
        """Of each pipeline of the space the rank that floors tell of."""
        return heaviest_of(self.facts, self.batches, (self._rows, self._seconds)).ranks

    @cached_property
    def sizes(self) -> Any:
        """The sizes of micro-batches, the smallest first."""
        return np.unique(self.batches.micro_batch_size)

    @cached_property
    def _widths(self) -> Any:
        """The place of each width among those that occur, by its number."""
        return np.cumsum(np.bincount(self.meshes.width) > 0) - 1

    def widths(self, columns: Columns) -> tuple[Columns, Any]:
        """Return every width of the space, and which of them rows of it have."""
        return self._every, self._widths.take(columns.width)

    @cached_property
    def _every(self) -> Columns:
        """A mesh of every width."""
        meshes, width = self.meshes, self.meshes.width
        first = np.zeros(int(width.max(initial=-1)) + 1, dtype=np.int64)
        first[width] = np.arange(len(width))
        own = meshes.at(first[np.bincount(width) > 0])
        if self.beside is None:
            return own
        others = self.beside._every  # noqa: SLF001 - of this class
        further = others.at(np.flatnonzero(~np.isin(_divided(others), _divided(own))))
        # each had its own numbers
        first, second = np.split(np.arange(len(own.pp) + len(further.pp)), [len(own.pp)])
        return stacked([own.joined({"width": first}), further.joined({"width": second})])

    @cached_property
    def _rows(self) -> Columns:
        """Every width with every size of a micro-batch."""
        many = len(self._every.pp)
        sizes = np.tile(self.sizes, many)
        rows = np.repeat(np.arange(many), len(self.sizes))
        return self._every.at(rows).joined({"micro_batch_size": sizes})

    @cached_property
    def _seconds(self) -> BlockSeconds:
        return block_seconds(self.facts, self._rows)


def _divided(columns: Columns) -> Any:
    """Return a number for each row by what divides its blocks."""
    return (columns.cp * MOST_RANKS + columns.tp) * MOST_RANKS + columns.ep
