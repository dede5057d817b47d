"""Of each pipeline one rank, most likely the slowest: its seconds are a floor of those of the pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.distinct import first_places, places_of
from parastrat.ranks.load import load_of
from parastrat.ranks.pipelines import pipelines_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.model import ModelSpec
    from parastrat.ranks.load import RankLoad
    from parastrat.ranks.pipelines import Pipelines


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyRanks:
    """The one rank of each of some pipelines. It may be any: a pipeline is as slow as its slowest."""

    pipelines: Pipelines
    #: the repeats of each kind of block on it, kinds before the places of pipelines in their table
    repeats: Any
    #: the numbers of stages that occur, the fewest first; of each of these what any of its pipelines' ranks
    #: holds at least, as ``load_of`` reads it
    stages: Any
    least: Any
    #: the repeats of these pipelines, which differ in virtual stages: a table of a pipeline of each number
    #: of stages before kinds, and another until all are told
    several: Sequence[Any]

    def repeats_of(self, c: Columns) -> Sequence[Any]:
        """Return the repeats of each kind of block on the rank of each plan, in arrays of one rank."""
        _, at = self.pipelines.table(c)
        repeats: Sequence[Any] = self.repeats.take(at, axis=-1)[:, None]
        return repeats

    def least_of(self, c: Columns) -> RankLoad:
        """Return what the rank of each mesh holds at least, whatever the virtual stages."""
        return load_of(self.pipelines, self.least, self.stage_places(c))

    def stage_places(self, c: Columns) -> Any:
        """Return the place of each mesh's number of stages among those that occur."""
        return np.searchsorted(self.stages, c.pp)


def heavy_ranks(model: ModelSpec, columns: Columns, shares: Any) -> HeavyRanks:
    """Return of each pipeline that some plans have the rank whose blocks take longest, about.

    Args:
        model: the model.
        columns: the plans.
        shares: of the seconds of all blocks those of one repeat of each kind, about.
    """
    pipelines, many = pipelines_of(model), len(shares)
    table, at = pipelines.table(columns)
    longest = np.tensordot(shares, table.padded[1 : 1 + many], 1).argmax(axis=0)
    # of a rank that stands there several times sums may round in as many ways
    numbers = table.numbers.take(table.firsts + np.minimum(longest, table.counts - 1), axis=-1)
    found, where = places_of(at)
    stages = columns.pp.take(first_places(where))
    order = np.argsort(stages, kind="stable")
    begins = np.flatnonzero(np.diff(stages[order], prepend=-1))
    own = numbers.take(found[order], axis=-1)
    repeats, last = own[1 : 1 + many].T, np.append(begins[1:], len(order)) - 1
    most = int((last - begins).max()) + 1
    return HeavyRanks(
        pipelines=pipelines,
        repeats=numbers[1 : 1 + many],
        stages=stages[order][begins],
        least=np.minimum.reduceat(own, begins, axis=-1),
        several=[repeats.take(np.minimum(begins + place, last), axis=0) for place in range(most)],
    )
