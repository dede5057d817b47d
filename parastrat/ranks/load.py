"""What the ranks of a pipeline hold: the blocks of their stages, and these blocks' parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import derived_with
from parastrat.elementwise import taken
from parastrat.ranks.chains import DIVIDED, TOTALS
from parastrat.ranks.pipelines import pipelines_of
from parastrat.remembered import remembered
from parastrat.units import Numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.model import ModelSpec
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.pipelines import Pipelines


#: so many parameters a model has of which it has none, whatever its ranks
NONE = 0


@dataclass(frozen=True, slots=True)
class ParameterTotals:
    """Parameters of one pipeline rank by what divides them, ties on the rank counted once.

    Numbers for one rank, arrays for a rank of many plans; 0 of what a model has none of.
    """

    replicated: Numbers = NONE
    tensor: Numbers = NONE
    expert: Numbers = NONE
    vocabulary: Numbers = NONE

    @property
    def total(self) -> Numbers:
        return self.replicated + self.tensor + self.expert + self.vocabulary

    def of(self, share: Any) -> ParameterTotals:
        """Return a share of each."""
        shares = (
            part * share if has_any(part) else 0
            for part in (self.replicated, self.tensor, self.expert, self.vocabulary)
        )
        return ParameterTotals(*shares)


def has_any(parameters: Numbers) -> bool:
    """Return whether a model may have any of some parameters."""
    return type(parameters) is not int or parameters != 0


#: what holds none
NO_PARAMETERS = ParameterTotals()


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
    return tuple(load_of(pipelines_of(model), tuple(row)) for row in ranks.tolist())


@remembered
def whole_model(model: ModelSpec) -> RankLoad:
    """Return what the one rank holds where there is no pipeline."""
    (whole,) = pipeline_ranks(model, 1, 1)
    return whole


def block_kinds(model: ModelSpec) -> Kinds:
    """Return the kinds of a model's blocks, by which ranks count what they hold."""
    return pipelines_of(model).kinds


@derived_with
def rank_columns(model: ModelSpec, c: Columns) -> RankLoad:
    """Return what the distinct pipeline ranks of many plans hold, as arrays with ranks before plans.

    A plan with fewer distinct ranks than another has its last one several times.
    """
    pipelines = pipelines_of(model)
    table, at = pipelines.table(c)
    deepest = int(table.counts[at].max(initial=1))
    return load_of(pipelines, table.padded[:, :deepest], at)


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


def load_of(pipelines: Pipelines, numbers: Any, places: Any = None) -> RankLoad:
    """Return a rank by its numbers: its place, the repeats of every kind of block, and its totals.

    Or of many ranks those at some places in the last axis.
    """
    many, width = len(pipelines.kinds.blocks), len(DIVIDED)
    rank, *repeats = [taken(each, places) for each in numbers[: 1 + many]]
    totals = zip(numbers[1 + many :], pipelines.chain.stated, strict=True)
    own = [taken(each, places) if stated else 0 for each, stated in totals]
    parts = (own[place * width : (place + 1) * width] for place in range(len(TOTALS)))
    found = (ParameterTotals(*part) if any(map(has_any, part)) else NO_PARAMETERS for part in parts)
    return RankLoad(rank=rank, repeats=tuple(repeats), **dict(zip(TOTALS, found, strict=True)))
