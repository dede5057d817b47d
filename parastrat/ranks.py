"""What the ranks of a pipeline hold: the blocks of their stages, and these blocks' parameters."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.model import Split
from parastrat.stages import cut
from parastrat.units import Numbers

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.model import ModelSpec

#: the totals of a rank, each by what divides it
_TOTALS = ("trainable", "frozen", "root")
_DIVIDED = ("replicated", "tensor", "expert")
_COLUMN_OF = {Split.REPLICATED: 0, Split.SEQUENCE: 0, Split.TENSOR: 1, Split.EXPERT: 2}

#: more virtual stages than any model has layers
_MOST_STAGES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTotals:
    """Parameters of one pipeline rank by what divides them, ties on the rank counted once.

    Numbers for one rank, arrays for a rank of many plans.
    """

    replicated: Numbers = 0
    tensor: Numbers = 0
    expert: Numbers = 0

    @property
    def total(self) -> Numbers:
        return self.replicated + self.tensor + self.expert

    def of(self, share: Any) -> ParameterTotals:
        """Return a share of each."""
        return ParameterTotals(
            replicated=self.replicated * share, tensor=self.tensor * share, expert=self.expert * share
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """The blocks of one pipeline rank; numbers for one rank, arrays for a rank of many plans."""

    rank: Numbers
    #: repeats of each block of the model on this rank, over all its virtual stages
    repeats: tuple[Numbers, ...]
    trainable: ParameterTotals
    frozen: ParameterTotals
    #: parameters outside repeated blocks, which FSDP2 keeps in the root unit
    root: ParameterTotals


def pipeline_ranks(model: ModelSpec, pp: int, virtual_stages: int) -> tuple[RankLoad, ...]:
    """Return the distinct pipeline ranks; of equal ones the first, which holds most in flight.

    Virtual stage i of rank r is stage ``i * pp + r`` of the chain. Ranks are equal that hold as many blocks
    of the same kinds in the same order.
    """
    return tuple(_load(model, row) for row in _pipelines_of(model).ranks(pp, virtual_stages).tolist())


def block_kinds(model: ModelSpec) -> tuple[int, ...]:
    """Return for each block the first that is equal to it, repeats and name aside."""
    return _pipelines_of(model).kinds


def rank_columns(model: ModelSpec, c: Columns) -> RankLoad:
    """Return the distinct pipeline ranks of many plans at once, as arrays with ranks before plans.

    A plan with fewer distinct ranks than another has its last one several times.
    """
    return _load(model, _ranks_of(model, c).transpose(2, 0, 1))


def first_ranks(model: ModelSpec, c: Columns) -> RankLoad:
    """Return the first pipeline rank of many plans, which holds most micro-batches in flight."""
    return _load(model, _ranks_of(model, c)[0].T)


def mean_ranks(model: ModelSpec, c: Columns) -> RankLoad:
    """Return what the pipeline ranks of each plan hold in the mean, or less.

    Ties are held once, and the root's parameters, which only some ranks of a pipeline have, by none.
    """
    (whole,) = pipeline_ranks(model, 1, 1)
    return RankLoad(
        rank=np.zeros(len(c.pp)),
        repeats=tuple(count / c.pp for count in whole.repeats),
        trainable=whole.trainable.of(1 / c.pp),
        frozen=whole.frozen.of(1 / c.pp),
        root=whole.root.of(c.pp == 1),
    )


def _ranks_of(model: ModelSpec, c: Columns) -> Any:
    """Return a row of numbers for each rank of each plan."""
    pipelines = _pipelines_of(model)
    column_of_keys = c.pp * _MOST_STAGES + c.virtual_stages
    # not np.unique, which loads numpy.ma
    keys = sorted(set(column_of_keys.tolist()))
    own = [pipelines.ranks(*divmod(key, _MOST_STAGES)) for key in keys]
    most = max((len(ranks) for ranks in own), default=1)
    table = np.empty((most, len(own), pipelines.parts.shape[1] + 1 + len(model.blocks)))
    for place, ranks in enumerate(own):
        table[: len(ranks), place] = ranks
        table[len(ranks) :, place] = ranks[-1]
    return table[:, np.searchsorted(np.array(keys, dtype=np.int64), column_of_keys)]


def _load(model: ModelSpec, numbers: Any) -> RankLoad:
    """Return a rank by its numbers: its place, the repeats of every block, and its totals."""
    many = len(model.blocks)
    rank, repeats, totals = numbers[0], numbers[1 : 1 + many], numbers[1 + many :]
    width = len(_DIVIDED)
    return RankLoad(
        rank=rank,
        repeats=tuple(repeats),
        **{
            part: ParameterTotals(
                **dict(zip(_DIVIDED, totals[place * width : (place + 1) * width], strict=True))
            )
            for place, part in enumerate(_TOTALS)
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pipelines:
    """The pipelines of one model that were cut so far, and what of it does not hang on the cut."""

    model: ModelSpec
    #: for each block the first that is equal to it, repeats and name aside
    kinds: tuple[int, ...]
    #: the totals of one repeat of each block, without parameters that are tied
    parts: Any
    #: for each group of tied parameters the blocks that have it, with its totals
    ties: tuple[tuple[tuple[int, Any], ...], ...]
    #: by ranks and virtual stages, a row for each distinct rank
    known: dict[tuple[int, int], Any] = field(default_factory=dict)

    def ranks(self, pp: int, virtual_stages: int) -> Any:
        """Return the distinct ranks of a pipeline, each as a row of numbers."""
        found = self.known.get((pp, virtual_stages))
        if found is None:
            found = self.known[pp, virtual_stages] = self._distinct(pp, virtual_stages)
        return found

    def _distinct(self, pp: int, virtual_stages: int) -> Any:
        stages = np.array(cut(self.model, pp * virtual_stages), dtype=float)
        repeats = stages.reshape(virtual_stages, pp, -1).sum(axis=0)
        first: dict[tuple[tuple[int, float], ...], int] = {}
        for rank, counts in enumerate(repeats.tolist()):
            held = ((kind, count) for kind, count in zip(self.kinds, counts, strict=True) if count)
            first.setdefault(tuple(held), rank)
        ranks = list(first.values())
        own = repeats[ranks]
        totals = own @ self.parts
        for group in self.ties:
            # the first of the blocks that a rank has holds the group for all
            missing = np.ones(len(ranks), dtype=bool)
            for place, parts in group:
                has = missing & (own[:, place] > 0)
                totals[has] += parts
                missing &= ~has
        return np.column_stack([ranks, own, totals])


#: the models that were met last; a job has its own, at most at several sequence lengths. Looked for by
#: identity, because to compare or hash a model takes as long as to cut it
_recent: deque[_Pipelines] = deque(maxlen=16)


def _pipelines_of(model: ModelSpec) -> _Pipelines:
    for pipelines in _recent:
        if pipelines.model is model:
            return pipelines
    alike = [replace(block, name="", repeat=1) for block in model.blocks]
    parts = np.zeros((len(model.blocks), len(_TOTALS) * len(_DIVIDED)))
    ties: dict[str, list[tuple[int, Any]]] = {}
    for place, block in enumerate(model.blocks):
        for group in block.parameters:
            own = np.zeros(parts.shape[1])
            for part, count in enumerate((group.trainable, group.frozen, 0 if block.unit else group.count)):
                own[part * len(_DIVIDED) + _COLUMN_OF[group.split]] = count
            if group.tie_group is None:
                parts[place] += own
            else:
                ties.setdefault(group.tie_group, []).append((place, own))
    found = _Pipelines(
        model=model,
        kinds=tuple(alike.index(block) for block in alike),
        parts=parts,
        ties=tuple(tuple(group) for group in ties.values()),
    )
    _recent.appendleft(found)
    return found
