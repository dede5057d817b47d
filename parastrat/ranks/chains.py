"""The chain of a model's blocks and the pipelines it was cut to, whatever its blocks compute.

Models have them in common that are one architecture at several sequence lengths, or in several formats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from parastrat.model import Split
from parastrat.ranks.firsts import first_backwards
from parastrat.ranks.flights import Turns, turns
from parastrat.ranks.moments import moments_of
from parastrat.ranks.starts import Starts, starts_of

if TYPE_CHECKING:
    from parastrat.model import Block, ModelSpec
    from parastrat.ranks.kinds import Kinds

#: the totals of a rank, each by what divides it
TOTALS = ("trainable", "frozen", "root")
DIVIDED = ("replicated", "tensor", "expert", "vocabulary")
COLUMN_OF = {Split.REPLICATED: 0, Split.SEQUENCE: 0, Split.TENSOR: 1, Split.EXPERT: 2, Split.VOCABULARY: 3}

#: a pipeline: its ranks, the virtual stages of each, and whether the chain runs up again
Shape: TypeAlias = tuple[int, int, bool]

#: ranks whose backward floors look at: the first has most in flight, of those behind it the next; either
#: may have none of a model's mixtures, and then the one behind it has
FOREMOST = 3

#: chains that are kept, cuts of each, and in how many weights turns of one cut
_CHAINS, _CUTS, _TURNS = 16, 96, 4


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The distinct ranks of several pipelines in arrays, one pipeline behind another."""

    #: of the blocks that the ranks have
    chain: Chain
    #: repeats of every block; ranks in the first axis
    repeats: Any
    #: place in the pipeline, repeats of every kind of block, and the totals; ranks in the last axis
    numbers: Any
    #: distinct ranks of each pipeline, and the place of its first one
    counts: Any
    firsts: Any

    @cached_property
    def padded(self) -> Any:
        """The numbers with ranks before pipelines; one with fewer than another has its last again."""
        among = np.minimum(np.arange(self.counts.max(initial=1))[:, None], self.counts - 1)
        return self.numbers.take(among + self.firsts, axis=-1)

    @cached_property
    def starts(self) -> Starts:
        """The blocks that start backward; quick floors do without them."""
        kinds, units, counted = self.chain.kinds, self.chain.units, self.chain.counted
        held = self.numbers[1 : 1 + len(units)]
        return starts_of(moments_of(self.repeats, kinds, units), held, units, counted, self.counts)

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
    #: what its ranks hold that have several virtual stages, as it was asked for; and the foremost as they
    #: begin their first backward
    turns: dict[tuple[bytes, bool], tuple[Turns, ...]] = field(default_factory=dict)
    firsts: dict[bool, tuple[Turns, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The blocks of a model in order, each with its repeats."""

    #: of every block its kind, and how often it stands there
    kinds: tuple[int, ...]
    repeats: tuple[int, ...]
    #: which kinds are FSDP units, and have parameters
    units: tuple[bool, ...]
    counted: tuple[bool, ...]
    #: which block each repeat of each block is
    places: Any
    #: where a block, in the first axis, is of a kind
    of_kind: Any
    #: the totals of one repeat of each block, without parameters that are tied
    parts: Any
    #: which of these totals are told; the others are of what the model has none of
    stated: tuple[bool, ...]
    #: for each group of tied parameters the blocks that have it, with its totals
    ties: tuple[tuple[tuple[int, Any], ...], ...]
    #: by shape, and the stage of each repeat of each block
    cuts: dict[tuple[Shape, tuple[int, ...]], Cut] = field(default_factory=dict)
    #: the last table, with its cuts, by their identities
    tables: dict[tuple[int, ...], tuple[tuple[Cut, ...], RankTable]] = field(default_factory=dict)

    def cut(self, shape: Shape, stages: tuple[int, ...]) -> Cut:
        """Return the distinct ranks of a pipeline of which each repeat of each block has this stage."""
        key = shape, stages
        if key not in self.cuts:
            if len(self.cuts) >= _CUTS:
                self.cuts.clear()
            self.cuts[key] = self._distinct(*key)
        return self.cuts[key]

    def _distinct(self, shape: Shape, stages: tuple[int, ...]) -> Cut:
        """Return the distinct ranks of a pipeline.

        Virtual stage i of rank r is stage ``i * pp + r`` of the chain; of a bent one each odd i runs up the
        ranks again, so that the first rank holds the first stage and the last. Ranks are equal that hold as
        many blocks of the same kinds in the same order; the first of them, which holds most in flight, is
        told, and of several virtual stages the most that any of them holds.
        """
        (pp, virtual_stages, bent), blocks = shape, len(self.kinds)
        filled = np.array(stages, dtype=np.int64) * blocks + self.places
        counts = np.bincount(filled, minlength=pp * virtual_stages * blocks).astype(float)
        held = counts.reshape(virtual_stages, pp, blocks)
        if bent:
            held[1::2] = held[1::2, ::-1].copy()
        repeats = held.sum(axis=0)
        # later ranks are overwritten by earlier ones; most hold the same blocks, which are told apart once
        every = range(pp - 1, -1, -1)
        same = {own.tobytes(): rank for rank, own in zip(every, repeats[::-1], strict=True)}
        kinds = np.array(self.kinds)
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
        rows = np.concatenate([np.array(ranks)[:, None], kept, totals], axis=1)
        return Cut(rows=rows, held=held, is_bent=bent)

    def numbers(self, rows: Any) -> Any:
        """Return ranks with the repeats of every kind of block for those of every block."""
        blocks = len(self.kinds)
        return np.concatenate(
            [rows[..., :1], rows[..., 1 : 1 + blocks] @ self.of_kind, rows[..., 1 + blocks :]], axis=-1
        )

    def table(self, cuts: tuple[Cut, ...]) -> RankTable:
        """Return a table with the ranks of some cuts."""
        # kept with the cuts, so that no others have their identities
        key = tuple(map(id, cuts))
        found = self.tables.get(key)
        if found is None:
            # mostly it has what the one before had, and more
            self.tables.clear()
            found = self.tables[key] = cuts, self._table(cuts)
        return found[1]

    def _table(self, cuts: tuple[Cut, ...]) -> RankTable:
        blocks = len(self.kinds)
        counts = np.array([len(cut.rows) for cut in cuts], dtype=np.int64)
        rows = np.concatenate(
            [np.empty((0, 1 + blocks + self.parts.shape[1])), *(cut.rows for cut in cuts)]
        )
        return RankTable(
            chain=self,
            repeats=rows[:, 1 : 1 + blocks],
            numbers=np.ascontiguousarray(self.numbers(rows).T),
            counts=counts,
            firsts=np.cumsum(counts) - counts,
        )

    def turns_of(self, cut: Cut, weights: Any, *, split: bool) -> tuple[Turns, ...]:
        """Return what the distinct ranks of a pipeline hold in each of ``flights.STEPS``."""
        key = weights.tobytes(), split
        found = cut.turns.get(key)
        if found is None:
            if len(cut.turns) >= _TURNS:
                cut.turns.clear()
            alike = self._alike(cut)
            found = turns(cut.held, self.of_kind, weights, alike, is_bent=cut.is_bent, split=split)
            cut.turns[key] = found
        return found

    def firsts_of(self, cut: Cut, *, split: bool) -> tuple[Turns, ...]:
        """Return what its foremost ranks hold as they begin their first backward."""
        if split not in cut.firsts:
            ranks = cut.rows[:FOREMOST, 0].astype(np.int64).tolist()
            found = first_backwards(cut.held, self.of_kind, ranks, is_bent=cut.is_bent, split=split)
            cut.firsts[split] = tuple(
                Turns(at_kinds=found[None, :, :, few], ending=np.zeros((1, found.shape[1], len(ranks))))
                for few in range(found.shape[2])
            )
        return cut.firsts[split]

    def _alike(self, cut: Cut) -> list[list[int]]:
        """Return for each distinct rank of a pipeline all that are equal to it, from the first."""
        told: dict[bytes, tuple[bytes, bytes]] = {}
        alike: dict[tuple[bytes, bytes], list[int]] = {}
        kinds = np.array(self.kinds)
        for rank, own in enumerate(cut.held.sum(axis=0)):
            same = own.tobytes()
            told[same] = told.get(same) or _told(own, kinds)
            alike.setdefault(told[same], []).append(rank)
        groups = {own[0]: own for own in alike.values()}
        return [groups[rank] for rank in cut.rows[:, 0].astype(int).tolist()]


def _told(repeats: Any, kinds: Any) -> tuple[bytes, bytes]:
    """Return what is equal for ranks that hold as many blocks of the same kinds in the same order."""
    held = repeats.nonzero()[0]
    return kinds[held].tobytes(), repeats[held].tobytes()


def chain_of(model: ModelSpec, kinds: Kinds) -> Chain:
    """Return the chain of a model's blocks."""
    # dozens of blocks are few distinct ones
    places = {id(block): place for place, block in enumerate(model.distinct_blocks)}
    return _chain(
        kinds.of,
        tuple(block.repeat for block in model.blocks),
        kinds.units,
        tuple(block.unit and block.parameter_count > 0 for block in kinds.blocks),
        (
            tuple(places[id(block)] for block in model.blocks),
            tuple(map(_parts_of, model.distinct_blocks)),
        ),
    )


_Totals: TypeAlias = tuple[int, ...]
#: the totals of a block's parameters that are tied to none, and of the others each with its tie
_Parts: TypeAlias = tuple[_Totals, tuple[tuple[str, _Totals], ...]]


def _parts_of(block: Block) -> _Parts:
    untied, tied = [0] * (len(TOTALS) * len(DIVIDED)), list[tuple[str, _Totals]]()
    for group in block.parameters:
        own = untied if group.tie_group is None else [0] * len(untied)
        for part, count in enumerate((group.trainable, group.frozen, 0 if block.unit else group.count)):
            own[part * len(DIVIDED) + COLUMN_OF[group.split]] += count
        if group.tie_group is not None:
            tied.append((group.tie_group, tuple(own)))
    return tuple(untied), tuple(tied)


@lru_cache(_CHAINS)
def _chain(
    kinds: tuple[int, ...],
    repeats: tuple[int, ...],
    units: tuple[bool, ...],
    counted: tuple[bool, ...],
    groups: tuple[tuple[int, ...], tuple[_Parts, ...]],
) -> Chain:
    which, distinct = groups
    totals = np.array([untied for untied, _ in distinct], dtype=float)
    ties: dict[str, list[tuple[int, Any]]] = {}
    for place, own in enumerate(which):
        for tie, tied in distinct[own][1]:
            ties.setdefault(tie, []).append((place, np.array(tied, dtype=float)))
    return Chain(
        kinds=kinds,
        repeats=repeats,
        units=units,
        counted=counted,
        places=np.repeat(np.arange(len(repeats)), repeats),
        of_kind=np.equal.outer(np.array(kinds), np.arange(len(units))),
        parts=totals[list(which)],
        stated=_stated(np.array([*totals, *(own for group in ties.values() for _, own in group)])),
        ties=tuple(tuple(group) for group in ties.values()),
    )


def _stated(parts: Any) -> tuple[bool, ...]:
    """Return which totals of parts are told: of trainable parameters at least what is whole and divided."""
    some = parts.any(axis=0).reshape(len(TOTALS), len(DIVIDED))
    some[:, :2] |= some.any(axis=1, keepdims=True)
    some[TOTALS.index("trainable"), :2] = True
    return tuple(some.ravel().tolist())
