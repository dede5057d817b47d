"""One plan's columns and what its pipeline ranks hold, picked as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns
from parastrat.memory.activations import kept_bytes
from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.flying import in_flight
from parastrat.memory.held import ranks_held
from parastrat.memory.peaks import moments_held
from parastrat.ranks import block_kinds
from parastrat.ranks.states import local, local_total, unit_totals
from parastrat.tables import facts_columns, plan_columns

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.memory.held import RanksHeld
    from parastrat.memory.peaks import MomentHeld
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.ranks.kinds import Kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePlan:
    """One plan as columns of one row, and what its ranks hold at the moments of a step."""

    facts: Facts
    c: Columns
    held: RanksHeld
    moments: tuple[MomentHeld, ...]
    kinds: Kinds
    #: of the blocks of each kind
    names: tuple[str, ...]
    #: of one micro-batch by one repeat of each kind, bytes
    kept: tuple[float, ...]

    def counts(self, place: int) -> list[int]:
        """Return the repeats of each kind on a rank."""
        return [round(number_of(count, place)) for count in self.held.load.repeats]

    def parameters(self, place: int) -> float:
        """Return the parameters that tp and ep leave on a rank."""
        totals = (self.held.load.trainable, self.held.load.frozen)
        return sum(number_of(part, place) for total in totals for part in local(total, self.c))

    def buffers(self, place: int) -> float:
        """Return what a pipeline rank keeps for what it receives, bytes."""
        rank = self.held.load.rank
        buffers, _ = crossing_bytes(self.facts, self.c, rank, in_flight(self.c, rank))
        return number_of(buffers, place)

    @property
    def units(self) -> tuple[float, ...]:
        """The parameters of one repeat of each kind of unit on a rank."""
        return _each(local_total(unit_totals(self.kinds), self.c))


def _names(model: ModelSpec, kinds: Kinds) -> tuple[str, ...]:
    named: dict[int, list[str]] = {}
    for kind, block in zip(kinds.of, model.blocks, strict=True):
        named.setdefault(kind, []).append(block.name)
    return tuple(" and ".join(dict.fromkeys(named[kind])) for kind in range(len(named)))


def _each(column: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in np.asarray(column).flat)


def number_of(column: Any, place: int) -> float:
    """Return a rank's number of one plan's column, with or without an axis of ranks."""
    column = np.asarray(column, dtype=float)
    return float(column[place if column.shape[0] > 1 else 0, 0] if column.ndim > 1 else column.flat[0])


def one_plan(facts: Facts, plan: Plan) -> OnePlan:
    """Return a plan as columns of one row, with what its distinct pipeline ranks hold."""
    of_plan = {name: np.array([value]) for name, value in plan_columns(plan).items()}
    columns = Columns({**facts_columns(facts), **of_plan})
    held, kinds = ranks_held(facts, columns), block_kinds(facts.model)
    return OnePlan(
        facts=facts,
        c=columns,
        held=held,
        moments=tuple(moments_held(facts, columns, held)),
        kinds=kinds,
        names=_names(facts.model, kinds),
        kept=_each(kept_bytes(facts, columns)),
    )
