"""A model's pipelines as they are cut: the blocks and parameters of their distinct ranks, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from parastrat.choices import is_any_of
from parastrat.model import Split
from parastrat.ranks.flights import Turns, first_backwards, turns
from parastrat.ranks.kinds import Kinds, kinds_of, weights_of
from parastrat.ranks.moments import moments_of
from parastrat.ranks.stages import cut_chain, loads_of
from parastrat.ranks.starts import Starts, starts_of
from parastrat.remembered import remembered
from parastrat.schedules import V_SHAPED

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.model import ModelSpec

#: the totals of a rank, each by what divides it
TOTALS = ("trainable", "frozen", "root")
DIVIDED = ("replicated", "tensor", "expert", "vocabulary")
COLUMN_OF = {Split.REPLICATED: 0, Split.SEQUENCE: 0, Split.TENSOR: 1, Split.EXPERT: 2, Split.VOCABULARY: 3}


#: a pipeline: its ranks, the virtual stages of each, and whether the chain runs up again
Shape: TypeAlias = tuple[int, int, bool]
_BENT = tuple(sorted(V_SHAPED))

_cutting = Lock()

#: ranks whose backward floors look at: the first has most in flight, of those behind it the next
FOREMOST = 2


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The distinct ranks of several pipelines in arrays, one pipeline behind another."""

    #: place in the pipeline, repeats of every kind of block, and the totals; ranks in the last axis
    numbers: Any
    #: the blocks that start backward on them
    starts: Starts
    #: distinct ranks of each pipeline, and the place of its first one
    counts: Any
    firsts: Any

    @cached_property
    def padded(self) -> Any:
        """The numbers with ranks before pipelines; one with fewer than another has its last again."""
        among = np.minimum(np.arange(self.counts.max(initial=1))[:, None], self.counts - 1)
        return self.numbers.take(among + self.firsts, axis=-1)

    @cached_property
    def starts_of_pipeline(self) -> float:
        """How many blocks start backward in a pipeline, in the mean."""
        return float(self.starts.counts.mean())

    @cached_property
    def foremost(self) -> Starts:
        """Of the starts those of the first ranks, of each kind of block the first one."""
        return self.starts.foremost(FOREMOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The distinct ranks of one pipeline, which come before all else in arrays."""

    #: place in the pipeline, repeats of every block, and the totals
    rows: Any
    #: repeats of each block, virtual stages of a rank before all ranks before blocks
    held: Any
    #: whether the chain runs down the ranks and up again
    is_bent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The pipelines of one model that were cut so far, and what of it does not hang on the cut."""

    model: ModelSpec
    kinds: Kinds
    #: what a repeat of each kind keeps and waits with, without recompute and with all of it made again
    weights: Any
    #: which block each repeat of each block is
    chain: Any
    #: where a block, in the first axis, is of a kind
    of_kind: Any
    #: the totals of one repeat of each block, without parameters that are tied
    parts: Any
    #: which of these totals are told; the others are of what the model has none of
    stated: tuple[bool, ...]
    #: for each group of tied parameters the blocks that have it, with its totals
    ties: tuple[tuple[tuple[int, Any], ...], ...]
    #: the places of pipelines in the lists and tables below
    known: dict[Shape, int] = field(default_factory=dict)
    #: by number of stages, the stage of each repeat of each block
    stages: dict[int, list[int]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    #: of those of them whose ranks have several virtual stages and that were asked for, what these hold
    #: with backward whole, or split
    turns: dict[tuple[int, bool], tuple[Turns, ...]] = field(default_factory=dict)
    firsts: dict[tuple[int, bool], tuple[Turns, ...]] = field(default_factory=dict)
    told_turns: dict[tuple[int, int], Any] = field(default_factory=dict)
    turning_tables: dict[tuple[bool, frozenset[bool]], Any] = field(default_factory=dict)
    told_ranks: dict[Shape, Any] = field(default_factory=dict)
    #: all of these, in the last entry
    tables: list[RankTable] = field(default_factory=list)

    def table(self, c: Columns) -> tuple[RankTable, Any]:
        """Return the ranks of pipelines, and which of these each of many plans has."""
        many = int(np.max(c.virtual_stages, initial=0)) + 1
        bent = is_any_of(c.pp_schedule, _BENT)
        shapes = (c.pp * many + c.virtual_stages) * 2 + bent
        found = np.flatnonzero(np.bincount(shapes))
        told = ((*divmod(shape // 2, many), shape % 2 == 1) for shape in found.tolist())
        table, places = self.table_of(*told)
        place_of = np.zeros(int(found.max(initial=0)) + 1, dtype=np.int64)
        place_of[found] = places
        return table, place_of[shapes]

    def table_of(self, *shapes: Shape) -> tuple[RankTable, Any]:
        """Return a table with some pipelines, and their places there."""
        places = [self.place_of(shape) for shape in shapes]
        if not self.tables or len(self.tables[-1].counts) < len(self.cuts):
            self.tables[:] = [self._table()]
        return self.tables[-1], np.array(places, dtype=np.int64)

    @property
    def starts_of_plan(self) -> float:
        """How many blocks start backward on the ranks of a pipeline, in the mean of those so far."""
        return self.tables[-1].starts_of_pipeline if self.tables else 1.0

    def ranks_of(self, shape: Shape) -> Any:
        """Return the distinct ranks of one pipeline as rows of numbers."""
        return self._numbers(self.cuts[self.place_of(shape)].rows)

    def place_of(self, shape: Shape) -> int:
        """Return the place of a pipeline, which is cut if it was not."""
        place = self.known.get(shape)
        if place is None:
            with _cutting:  # threads may ask for the same
                place = self.known.get(shape, len(self.cuts))
                if place == len(self.cuts):
                    self.cuts.append(self._distinct(*shape))
                    self.known[shape] = place
        return place

    def _numbers(self, rows: Any) -> Any:
        """Return ranks with the repeats of every kind of block for those of every block."""
        blocks = len(self.kinds.of)
        return np.concatenate(
            [rows[..., :1], rows[..., 1 : 1 + blocks] @ self.of_kind, rows[..., 1 + blocks :]], axis=-1
        )

    def _table(self) -> RankTable:
        blocks = len(self.kinds.of)
        counts = np.array([len(cut.rows) for cut in self.cuts], dtype=np.int64)
        rows = np.concatenate(
            [np.empty((0, 1 + blocks + self.parts.shape[1])), *(cut.rows for cut in self.cuts)]
        )
        numbers = np.ascontiguousarray(self._numbers(rows).T)
        units = self.kinds.units
        return RankTable(
            numbers=numbers,
            starts=starts_of(
                moments_of(rows[:, 1 : 1 + blocks], self.kinds.of, units),
                numbers[1 : 1 + len(units)],
                units,
                [block.unit and block.parameter_count > 0 for block in self.kinds.blocks],
                counts,
            ),
            counts=counts,
            firsts=np.cumsum(counts) - counts,
        )

    def turns_of(self, place: int, *, split: bool) -> tuple[Turns, ...]:
        """Return what the distinct ranks of a pipeline hold in each of ``flights.STEPS``."""
        if (place, split) not in self.turns:
            cut = self.cuts[place]
            self.turns[place, split] = turns(
                cut.held, self.of_kind, self.weights, self._alike(cut), is_bent=cut.is_bent, split=split
            )
        return self.turns[place, split]

    def firsts_of(self, place: int, *, split: bool) -> tuple[Turns, ...]:
        """Return what its foremost ranks hold as they begin their first backward."""
        if (place, split) not in self.firsts:
            cut = self.cuts[place]
            ranks = cut.rows[:FOREMOST, 0].astype(np.int64)
            found = first_backwards(cut.held, self.of_kind, ranks, is_bent=cut.is_bent, split=split)
            self.firsts[place, split] = tuple(
                Turns(at_kinds=found[None, :, :, few], ending=np.zeros((1, found.shape[1], len(ranks))))
                for few in range(found.shape[2])
            )
        return self.firsts[place, split]

    def _distinct(self, pp: int, virtual_stages: int, bent: bool) -> Cut:
        """Return the distinct ranks of a pipeline.

        Virtual stage i of rank r is stage ``i * pp + r`` of the chain; of a bent one each odd i runs up the
        ranks again, so that the first rank holds the first stage and the last. Ranks are equal that hold as
        many blocks of the same kinds in the same order; the first of them, which holds most in flight, is
        told, and of several virtual stages the most that any of them holds.
        """
        stages, blocks = pp * virtual_stages, len(self.kinds.of)
        if stages not in self.stages:
            self.stages[stages] = cut_chain(loads_of(self.model, stages), stages)
        filled = np.array(self.stages[stages]) * blocks + self.chain
        counts = np.bincount(filled, minlength=stages * blocks).astype(float)
        held = counts.reshape(virtual_stages, pp, blocks)
        if bent:
            held[1::2] = held[1::2, ::-1].copy()
        repeats = held.sum(axis=0)
        # later ranks are overwritten by earlier ones; most hold the same blocks, which are told apart once
        every = range(pp - 1, -1, -1)
        same = {own.tobytes(): rank for rank, own in zip(every, repeats[::-1], strict=True)}
        kinds = np.array(self.kinds.of)
        first = {_told(repeats[rank], kinds): rank for rank in sorted(same.values(), reverse=True)}
        ranks = sorted(first.values())
        kept = repeats[ranks]
        totals = kept @ self.parts
        for group in self.ties:
            # the first of the blocks that a rank has holds the group for all
            missing = np.ones(len(ranks), dtype=bool)
            for place, parts in group:
                has = missing & (kept[:, place] > 0)
                totals[has] += parts
                missing &= ~has
        return Cut(rows=np.column_stack([ranks, kept, totals]), held=held, is_bent=bent)

    def _alike(self, cut: Cut) -> list[list[int]]:
        """Return for each distinct rank of a pipeline all that are equal to it, from the first."""
        told: dict[bytes, tuple[bytes, bytes]] = {}
        alike: dict[tuple[bytes, bytes], list[int]] = {}
        for rank, own in enumerate(cut.held.sum(axis=0)):
            same = own.tobytes()
            told[same] = told.get(same) or _told(own, np.array(self.kinds.of))
            alike.setdefault(told[same], []).append(rank)
        groups = {own[0]: own for own in alike.values()}
        return [groups[rank] for rank in cut.rows[:, 0].astype(int).tolist()]


def _told(repeats: Any, kinds: Any) -> tuple[bytes, bytes]:
    """Return what is equal for ranks that hold as many blocks of the same kinds in the same order."""
    held = repeats.nonzero()[0]
    return kinds[held].tobytes(), repeats[held].tobytes()


@remembered
def pipelines_of(model: ModelSpec) -> Pipelines:
    """Return a model's pipelines."""
    parts = np.zeros((len(model.blocks), len(TOTALS) * len(DIVIDED)))
    ties: dict[str, list[tuple[int, Any]]] = {}
    for place, block in enumerate(model.blocks):
        for group in block.parameters:
            own = np.zeros(parts.shape[1])
            for part, count in enumerate((group.trainable, group.frozen, 0 if block.unit else group.count)):
                own[part * len(DIVIDED) + COLUMN_OF[group.split]] = count
            if group.tie_group is None:
                parts[place] += own
            else:
                ties.setdefault(group.tie_group, []).append((place, own))
    kinds, tied = kinds_of(model), sum(own for group in ties.values() for _, own in group)
    return Pipelines(
        model=model,
        kinds=kinds,
        weights=weights_of(kinds.blocks),
        chain=np.repeat(np.arange(len(model.blocks)), [block.repeat for block in model.blocks]),
        of_kind=np.equal.outer(np.array(kinds.of), np.arange(len(kinds.blocks))),
        parts=parts,
        stated=_stated(parts + tied),
        ties=tuple(tuple(group) for group in ties.values()),
    )


def _stated(parts: Any) -> tuple[bool, ...]:
    """Return which totals of parts are told: of trainable parameters at least what is whole and divided."""
    some = parts.any(axis=0).reshape(len(TOTALS), len(DIVIDED))
    some[:, :2] |= some.any(axis=1, keepdims=True)
    some[TOTALS.index("trainable"), :2] = True
    return tuple(some.ravel().tolist())
