"""What the ranks of a pipeline hold: the blocks of their stages, and these blocks' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import derived_with
from parastrat.ranks.pipelines import DIVIDED, TOTALS, pipelines_of
from parastrat.remembered import remembered
from parastrat.units import Numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.model import ModelSpec
    from parastrat.ranks.flights import Turns
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.moments import Moments
    from parastrat.ranks.pipelines import RankTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTotals:
    """Parameters of one pipeline rank by what divides them, ties on the rank counted once.

    Numbers for one rank, arrays for a rank of many plans; 0 of what a model has none of.
    """

    replicated: Numbers = 0
    tensor: Numbers = 0
    expert: Numbers = 0
    vocabulary: Numbers = 0

    @property
    def total(self) -> Numbers:
        return self.replicated + self.tensor + self.expert + self.vocabulary

    def of(self, share: Any) -> ParameterTotals:
        """Return a share of each."""
        shares = (
            part * share if has_any(part) else 0
            for part in (self.replicated, self.tensor, self.expert, self.vocabulary)
        )
        return ParameterTotals(**dict(zip(DIVIDED, shares, strict=True)))


def has_any(parameters: Numbers) -> bool:
    """Return whether a model may have any of some parameters."""
    return not (isinstance(parameters, int) and parameters == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoad:
    """The blocks of one pipeline rank; numbers for one rank, arrays for a rank of many plans."""

    rank: Numbers
    #: repeats of each kind of block on this rank, over all its virtual stages
    repeats: Sequence[Numbers]
    trainable: ParameterTotals
    frozen: ParameterTotals
    #: parameters outside repeated blocks, which FSDP2 keeps in the root unit
    root: ParameterTotals


def pipeline_ranks(
    model: ModelSpec, pp: int, virtual_stages: int, *, bent: bool = False
) -> tuple[RankLoad, ...]:
    """Return the distinct pipeline ranks; of equal ones the first, which holds most in flight.

    Args:
        model: the model.
        pp: ranks of the pipeline.
        virtual_stages: of each rank.
        bent: the chain runs down the ranks and up again, as under the V schedules.
    """
    ranks = pipelines_of(model).ranks_of((pp, virtual_stages, bent))
    return tuple(_load(model, tuple(row)) for row in ranks.tolist())


@remembered
def whole_model(model: ModelSpec) -> RankLoad:
    """Return what the one rank holds where there is no pipeline."""
    (whole,) = pipeline_ranks(model, 1, 1)
    return whole


def block_kinds(model: ModelSpec) -> Kinds:
    """Return the kinds of a model's blocks, by which ranks count what they hold."""
    return pipelines_of(model).kinds


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The distinct pipeline ranks of many plans.

    A plan with fewer distinct ranks than another has its last one several times.
    """

    model: ModelSpec
    table: RankTable
    #: which of the table's pipelines each plan has
    at: Any

    @cached_property
    def every(self) -> RankLoad:
        """What they hold, as arrays with ranks before plans."""
        return _load(self.model, self.table.numbers.take(self.at, axis=2))

    @property
    def counts(self) -> Any:
        """How many each plan has."""
        return self.table.counts[self.at]

    def foremost(self, most: int) -> RankLoad:
        """Return what the first ranks of each pipeline hold, which have most micro-batches in flight."""
        return _load(self.model, self.table.numbers[:, :most].take(self.at, axis=2))

    def turning(self, ways: Any) -> Turns:
        """Return what ranks hold of plans all of whose virtual stages take turns.

        Args:
            ways: the place of each plan's way among ``flights.WAYS``.
        """
        return pipelines_of(self.model).turning(self.at, ways, self.table.numbers.shape[1])

    def first_backwards(self, most: int, ways: Any, kinds: Any) -> Any:
        """Return what the first ranks of such plans hold as they begin their first backward.

        Args:
            most: of the ranks.
            ways: as of ``turning``.
            kinds: that run then.

        Returns:
            These kinds before all that are held before ranks before plans.
        """
        most = min(most, self.table.numbers.shape[1])
        return pipelines_of(self.model).first_backwards(self.at, ways, most, kinds)

    def among(self, rows: Any) -> Ranks:
        """Return those of some plans."""
        return Ranks(model=self.model, table=self.table, at=self.at[rows])

    @cached_property
    def moments(self) -> Moments:
        """When they may peak, in arrays with ranks before plans."""
        return self.table.moments.at(self.at)

    def foremost_moments(self, most: int) -> Moments:
        """Return when the first ranks of each pipeline may, for each kind of block the first time alone."""
        return self.table.moments.foremost().ranks(most).at(self.at)


@derived_with
def ranks_of(model: ModelSpec, c: Columns) -> Ranks:
    """Return the distinct pipeline ranks of many plans."""
    table, at = pipelines_of(model).table(c)
    return Ranks(model=model, table=table, at=at)


def rank_columns(model: ModelSpec, c: Columns) -> RankLoad:
    """Return what the distinct pipeline ranks of many plans hold, as arrays with ranks before plans."""
    return ranks_of(model, c).every


def mean_ranks(model: ModelSpec, c: Columns) -> RankLoad:
    """Return what the pipeline ranks of each plan hold in the mean, or less.

    Ties are held once, and the root's parameters, which only some ranks of a pipeline have, by none.
    """
    whole = whole_model(model)
    return RankLoad(
        rank=np.zeros(len(c.pp)),
        repeats=tuple(count / c.pp for count in whole.repeats),
        trainable=whole.trainable.of(1 / c.pp),
        frozen=whole.frozen.of(1 / c.pp),
        root=whole.root.of(c.pp == 1),
    )


def _load(model: ModelSpec, numbers: Any) -> RankLoad:
    """Return a rank by its numbers: its place, the repeats of every kind of block, and its totals."""
    pipelines = pipelines_of(model)
    many, width = len(pipelines.kinds.blocks), len(DIVIDED)
    rank, repeats, totals = numbers[0], numbers[1 : 1 + many], numbers[1 + many :]
    own = [part if stated else 0 for part, stated in zip(totals, pipelines.stated, strict=True)]
    return RankLoad(
        rank=rank,
        repeats=repeats,
        **{
            part: ParameterTotals(
                **dict(zip(DIVIDED, own[place * width : (place + 1) * width], strict=True))
            )
            for place, part in enumerate(TOTALS)
        },
    )
