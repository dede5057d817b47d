"""A model's pipelines as they are cut: the blocks and parameters of their distinct ranks, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.ranks.chains import chain_of
from parastrat.ranks.kinds import Kinds, kinds_of, weights_of
from parastrat.ranks.stages import cut_chain, loads_of
from parastrat.remembered import remembered
from parastrat.schedules import V_SHAPED

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.model import ModelSpec
    from parastrat.ranks.chains import Chain, Cut, RankTable, Shape
    from parastrat.ranks.flights import Turns

_BENT = tuple(sorted(V_SHAPED))

#: sets of pipelines whose places are kept
_KEPT = 64

_cutting = Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """The pipelines of one model that were cut so far, and what of it does not hang on the cut."""

    model: ModelSpec
    kinds: Kinds
    #: what a repeat of each kind keeps and waits with, without recompute and with all of it made again
    weights: Any
    #: its blocks, whatever they compute
    chain: Chain
    #: the places of pipelines in the lists and tables below
    known: dict[Shape, int] = field(default_factory=dict)
    #: by number of stages, the stage of each repeat of each block
    stages: dict[int, tuple[int, ...]] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    told_turns: dict[tuple[int, int], Any] = field(default_factory=dict)
    turning_tables: dict[tuple[bool, frozenset[bool]], Any] = field(default_factory=dict)
    told_ranks: dict[Shape, Any] = field(default_factory=dict)
    #: of sets of pipelines that plans had together their places, by the numbers that tell them
    told_places: dict[tuple[int, bytes], Any] = field(default_factory=dict)
    #: all of these, in the last entry
    tables: list[RankTable] = field(default_factory=list)

    def table(self, c: Columns) -> tuple[RankTable, Any]:
        """Return the ranks of pipelines, and which of these each of many plans has."""
        many = int(np.max(c.virtual_stages, initial=0)) + 1
        bent = is_any_of(c.pp_schedule, _BENT)
        shapes = (c.pp * many + c.virtual_stages) * 2 + bent
        found = np.bincount(shapes).nonzero()[0]
        key = many, found.tobytes()
        place_of = self.told_places.get(key)
        if place_of is None:
            told = ((*divmod(shape // 2, many), shape % 2 == 1) for shape in found.tolist())
            place_of = np.zeros(int(found.max(initial=0)) + 1, dtype=np.int64)
            place_of[found] = self.table_of(*told)[1]
            if len(self.told_places) >= _KEPT:
                self.told_places.clear()
            self.told_places[key] = place_of
        # places stay where they are as further pipelines come
        return self.table_of()[0], place_of.take(shapes)

    def table_of(self, *shapes: Shape) -> tuple[RankTable, Any]:
        """Return a table with some pipelines, and their places there."""
        places = [self.place_of(shape) for shape in shapes]
        if not self.tables or len(self.tables[-1].counts) < len(self.cuts):
            self.tables[:] = [self.chain.table(tuple(self.cuts))]
        return self.tables[-1], np.array(places, dtype=np.int64)

    @property
    def starts_of_plan(self) -> float:
        """How many blocks start backward on the ranks of a pipeline, in the mean of those so far."""
        return self.tables[-1].starts_of_pipeline if self.tables else 1.0

    def ranks_of(self, shape: Shape) -> Any:
        """Return the distinct ranks of one pipeline as rows of numbers."""
        return self.chain.numbers(self.cuts[self.place_of(shape)].rows)

    def place_of(self, shape: Shape) -> int:
        """Return the place of a pipeline, which is cut if it was not."""
        place = self.known.get(shape)
        if place is None:
            with _cutting:  # threads may ask for the same
                place = self.known.get(shape, len(self.cuts))
                if place == len(self.cuts):
                    self.cuts.append(self.chain.cut(shape, self._stages_of(shape[0] * shape[1])))
                    self.known[shape] = place
        return place

    def _stages_of(self, stages: int) -> tuple[int, ...]:
        if stages not in self.stages:
            self.stages[stages] = tuple(cut_chain(loads_of(self.model, stages), stages))
        return self.stages[stages]

    def turns_of(self, place: int, *, split: bool) -> tuple[Turns, ...]:
        """Return what the distinct ranks of a pipeline hold in each of ``flights.STEPS``."""
        return self.chain.turns_of(self.cuts[place], self.weights, split=split)

    def firsts_of(self, place: int, *, split: bool) -> tuple[Turns, ...]:
        """Return what its foremost ranks hold as they begin their first backward."""
        return self.chain.firsts_of(self.cuts[place], split=split)


@remembered
def pipelines_of(model: ModelSpec) -> Pipelines:
    """Return a model's pipelines."""
    kinds = kinds_of(model)
    return Pipelines(
        model=model, kinds=kinds, weights=weights_of(kinds.blocks), chain=chain_of(model, kinds)
    )
