"""How a model's chain of blocks is cut over the pipeline ranks."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.model import Split
from parastrat.units import Numbers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.columns import Columns
    from parastrat.model import Block, ModelSpec


#: the totals of a rank
_TOTALS = ("trainable", "frozen", "root")

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

    def at(self, place: int) -> RankLoad:
        """Return one rank of each plan, of arrays with ranks before plans."""

        def own(totals: ParameterTotals) -> ParameterTotals:
            return ParameterTotals(
                replicated=_at(totals.replicated, place),
                tensor=_at(totals.tensor, place),
                expert=_at(totals.expert, place),
            )

        return RankLoad(
            rank=_at(self.rank, place),
            repeats=tuple(_at(counts, place) for counts in self.repeats),
            trainable=own(self.trainable),
            frozen=own(self.frozen),
            root=own(self.root),
        )


def _at(ranks: Any, place: int) -> Any:
    return ranks[place]


def cut(model: ModelSpec, stages: int) -> tuple[tuple[int, ...], ...]:
    """Cut the chain into contiguous stages so that the one with the most FLOPs has the fewest.

    Stages are filled from the end, each to the mean of what is left: where they cannot be equal, the first
    ones, which hold the most micro-batches in flight, get less. Llama 3 405B on 16 stages comes out as
    published (arXiv:2407.21783, section 3.3.2): one layer less on the first and on the last stage. With
    more stages than blocks the first stages are empty.

    Returns:
        For each stage the repeats of each block.
    """
    chain = [index for index, block in enumerate(model.blocks) for _ in range(block.repeat)]
    filled = [[0] * len(model.blocks) for _ in range(stages)]
    for index, stage in zip(chain, cut_chain([model.blocks[i].flops for i in chain], stages), strict=True):
        filled[stage][index] += 1
    return tuple(tuple(repeats) for repeats in filled)


def cut_chain(flops: list[float], stages: int) -> list[int]:
    """Return the stage of each item of a chain with these FLOPs, cut as ``cut`` says."""
    limit = _least_limit(flops, stages)
    loads = [0.0, *accumulate(reversed(flops))]
    places = [0] * len(flops)
    stage, load, left = stages - 1, 0.0, sum(flops)
    for index in reversed(range(len(flops))):
        full = load > 0 and load + flops[index] > limit
        even = load > 0 and load >= left / (stage + 1)
        if even and not full:
            even = _stages_needed(loads, limit, len(flops) - 1 - index) <= stage
        if stage > 0 and (full or even or index + 1 <= stage):
            stage, load, left = stage - 1, 0.0, left - load
        places[index] = stage
        load += flops[index]
    return places


def _least_limit(flops: list[float], stages: int) -> float:
    """Return the smallest load such that contiguous stages of at most that load suffice."""
    low, high = max(*flops, sum(flops) / stages), sum(flops)
    loads = [0.0, *accumulate(reversed(flops))]
    for _ in range(40):
        middle = (low + high) / 2
        if _stages_needed(loads, middle) <= stages:
            high = middle
        else:
            low = middle
        if high - low <= 1e-6 * high:
            break
    return high


def _stages_needed(loads: list[float], limit: float, reached: int = 0) -> int:
    """Return the stages of at most ``limit`` for what is left when ``reached`` items from the end have one.

    ``loads`` adds up the chain from its end.
    """
    needed = 0
    while reached < len(loads) - 1:
        # what is larger than the limit has a stage of its own
        reached = max(bisect_right(loads, loads[reached] + limit) - 1, reached + 1)
        needed += 1
    return needed


def pipeline_ranks(model: ModelSpec, pp: int, virtual_stages: int) -> tuple[RankLoad, ...]:
    """Return the distinct pipeline ranks; of equal ones the first, which holds most in flight.

    Virtual stage i of rank r is stage ``i * pp + r`` of the chain. Ranks are equal that hold as many blocks
    of the same kinds in the same order.
    """
    return _pipelines(model, [(pp, virtual_stages)])[0]


def _pipelines(model: ModelSpec, shapes: list[tuple[int, int]]) -> list[tuple[RankLoad, ...]]:
    known, kinds = _known_ranks(model)
    for shape in shapes:
        if shape not in known:
            known[shape] = tuple(_distinct_ranks(model, kinds, *shape))
    return [known[shape] for shape in shapes]


@lru_cache(maxsize=16)
def _known_ranks(
    model: ModelSpec,
) -> tuple[dict[tuple[int, int], tuple[RankLoad, ...]], tuple[int, ...]]:
    """Return the pipelines of a model that were cut before, to be added to, and its blocks' kinds.

    By model, because hashing one takes as long as cutting it.
    """
    alike = [replace(block, name="", repeat=1) for block in model.blocks]
    return {}, tuple(alike.index(block) for block in alike)


def block_kinds(model: ModelSpec) -> tuple[int, ...]:
    """Return for each block the first that is equal to it, repeats and name aside."""
    return _known_ranks(model)[1]


def _distinct_ranks(
    model: ModelSpec, kinds: tuple[int, ...], pp: int, virtual_stages: int
) -> Iterator[RankLoad]:
    stages = cut(model, pp * virtual_stages)
    seen: set[tuple[tuple[int, int], ...]] = set()
    for rank in range(pp):
        repeats = tuple(sum(counts) for counts in zip(*stages[rank::pp], strict=True))
        held = tuple((kind, count) for kind, count in zip(kinds, repeats, strict=True) if count)
        if held not in seen:
            seen.add(held)
            yield _load(model.blocks, rank, repeats)


def rank_columns(model: ModelSpec, c: Columns) -> RankLoad:
    """Return the distinct pipeline ranks of many plans at once, as arrays with ranks before plans.

    A plan with fewer distinct ranks than another has its last one several times.
    """
    column_of_keys = c.pp * _MOST_STAGES + c.virtual_stages
    # not np.unique, which loads numpy.ma
    keys = sorted(set(column_of_keys.tolist()))
    where = np.searchsorted(np.array(keys, dtype=np.int64), column_of_keys)
    loads = _pipelines(model, [divmod(key, _MOST_STAGES) for key in keys])
    most = max((len(ranks) for ranks in loads), default=1)
    rows = [[_fields(ranks[min(place, len(ranks) - 1)]) for ranks in loads] for place in range(most)]
    many = len(model.blocks)
    table = np.array(rows, dtype=float).reshape(most, len(loads), 1 + many + 3 * len(_TOTALS))
    # taken together, because there are many
    rank, *columns = table.transpose(2, 0, 1)[:, :, where]
    return RankLoad(
        rank=rank,
        repeats=tuple(columns[:many]),
        **{
            part: ParameterTotals(
                replicated=columns[many + 3 * place],
                tensor=columns[many + 3 * place + 1],
                expert=columns[many + 3 * place + 2],
            )
            for place, part in enumerate(_TOTALS)
        },
    )


def _fields(load: RankLoad) -> list[Numbers]:
    totals = [getattr(load, part) for part in _TOTALS]
    counts = [(each.replicated, each.tensor, each.expert) for each in totals]
    return [load.rank, *load.repeats, *(count for three in counts for count in three)]


def mean_rank(model: ModelSpec, c: Columns) -> RankLoad:
    """Return what the pipeline ranks of each plan hold in the mean, or less.

    Ties are held once, and the root's parameters, which only some ranks of a pipeline have, by none.
    """

    def share(totals: ParameterTotals, shares: Numbers) -> ParameterTotals:
        return ParameterTotals(
            replicated=totals.replicated * shares,
            tensor=totals.tensor * shares,
            expert=totals.expert * shares,
        )

    whole = pipeline_ranks(model, 1, 1)[0]
    return RankLoad(
        rank=np.zeros(len(c.pp)),
        repeats=tuple(count / c.pp for count in whole.repeats),
        trainable=share(whole.trainable, 1 / c.pp),
        frozen=share(whole.frozen, 1 / c.pp),
        root=share(whole.root, c.pp == 1),
    )


def _load(blocks: tuple[Block, ...], rank: int, repeats: tuple[int, ...]) -> RankLoad:
    trainable, frozen, root = dict.fromkeys(Split, 0), dict.fromkeys(Split, 0), dict.fromkeys(Split, 0)
    ties: set[str] = set()
    for block, count in zip(blocks, repeats, strict=True):
        for group in block.parameters if count else ():
            if group.tie_group in ties:
                continue
            if group.tie_group is not None:
                ties.add(group.tie_group)
            held = count if group.tie_group is None else 1
            trainable[group.split] += group.trainable * held
            frozen[group.split] += group.frozen * held
            if not block.unit:
                root[group.split] += group.count * held
    return RankLoad(
        rank=rank,
        repeats=repeats,
        trainable=_totals(trainable),
        frozen=_totals(frozen),
        root=_totals(root),
    )


def _totals(counts: dict[Split, int]) -> ParameterTotals:
    return ParameterTotals(
        replicated=counts[Split.REPLICATED] + counts[Split.SEQUENCE],
        tensor=counts[Split.TENSOR],
        expert=counts[Split.EXPERT],
    )
