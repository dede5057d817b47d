"""Rows with floors: what none of their plans falls below."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost import BlockSeconds, block_seconds, time_floor, work_floor
from parastrat.memory import memory_margin
from parastrat.memory.floors import memory_floor, mesh_floor
from parastrat.rules import rejection_masks
from parastrat.search.obeying import Obeying, Rejected, attributed
from parastrat.search.rows import Constraints
from parastrat.search.space import option_counts, policies

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns

#: share of meshes that must not fit before it saves time to leave their rows out at once
_MOST = 0.5

#: rows that are judged sooner than bounded
_FEW = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Rows that obey rules, with floors of their memory, once they are asked for, and of their step."""

    facts: Facts
    fixed: Constraints
    allowed: Obeying
    #: for each recompute policy that is searched, a row of bytes; 0 where nobody asked
    memory: Any
    #: the rows whose memory was asked for, and those that a rule of memory removed, maybe by their mesh
    asked: Any
    removed: Any
    #: by rule
    rejected: list[Rejected]
    #: whether memory is a limit
    limited: bool = True

    @property
    def columns(self) -> Columns:
        return self.allowed.columns

    @property
    def few(self) -> bool:
        """Whether the rows are judged sooner than bounded."""
        return len(self.asked) <= _FEW

    def able(self, places: Any, *, roomy: bool) -> Any:
        """Return which of some rows may fit under any policy, with the margin or without."""
        if self.few:
            return np.ones(len(places), dtype=bool)
        unasked = places[~self.asked[places]]
        if len(unasked):
            self._ask(unasked)
        able = ~self.removed[places]
        return able & self.may_fit(places, roomy=True).any(axis=0) if roomy else able

    def ask_of_meshes(self) -> None:
        """Remove the rows of meshes that do not fit whatever else is chosen."""
        floors, mesh = mesh_floor(self.facts, self.allowed.meshes), self.columns.mesh
        misfits = floors > self.facts.hardware.device.usable_memory_bytes
        if misfits.mean() > _MOST:
            places = np.flatnonzero(misfits[mesh])
            self.memory[:, places] = floors[mesh[places]]
            self._remove(places)

    def _ask(self, places: Any) -> None:
        self.refine(places)
        self._remove(places)

    def refine(self, places: Any) -> None:
        """Find floors of memory of some rows, higher than those of their meshes."""
        columns = self._chosen(places)
        self.memory[:, places] = memory_floor(self.facts, columns, policies(self.fixed))
        self.asked[places] = True

    def _remove(self, places: Any) -> None:
        """Remove those of some rows whose floors of memory a rule forbids."""
        columns, capacity = self._chosen(places), self.facts.hardware.device.usable_memory_bytes
        least = self.memory[:, places].min(axis=0)
        judged = columns.joined({"memory_total": least, "memory_capacity": capacity})
        # a rule of memory that fires on the floor fires on every plan of the row
        masks = dict(rejection_masks(judged, self.allowed.judged))
        _, rejected = attributed(judged, masks, option_counts(self.fixed, columns))
        for entry in rejected:
            self.removed[places[entry.rows]] = True
        self.rejected.extend(rejected)

    def _chosen(self, places: Any) -> Columns:
        # columns that were read are not taken again
        return (
            self.columns if np.array_equal(places, np.arange(len(self.asked))) else self.columns.at(places)
        )

    def may_fit(self, places: Any, *, roomy: bool) -> Any:
        """Return for each policy which of some rows may fit under it, with the margin or without."""
        memory = self.memory[:, places]
        margin = memory_margin(self.facts, memory) if roomy else 0
        return memory + margin <= self.facts.hardware.device.usable_memory_bytes

    def blocks(self, places: Any) -> BlockSeconds:
        """Return what a micro-batch takes in the blocks of some rows."""
        return block_seconds(self.facts, self._chosen(places))

    def steps(self, places: Any, blocks: BlockSeconds | None, *, roomy: bool) -> Any:
        """Return the floors of some rows' steps, of plans that fit with the margin or without.

        It is that of the first policy that may fit, because each computes again at least what those before
        it do.
        """
        if self.few or not len(places):
            return np.zeros(len(places))
        codes = np.array([code_of(policy) for policy in policies(self.fixed)])
        recompute = codes[self.may_fit(places, roomy=roomy).argmax(axis=0)]
        return time_floor(self.facts, self._chosen(places).joined({"recompute": recompute}), blocks)

    def works(self, places: Any, blocks: BlockSeconds | None) -> Any:
        """Return lower floors of some rows' steps, computed in less time and without their memory."""
        recompute = code_of(policies(self.fixed)[0])
        return work_floor(self.facts, self._chosen(places).joined({"recompute": recompute}), blocks)


def bounded(facts: Facts, fixed: Constraints, allowed: Obeying) -> Bounded:
    """Return the rows that rules leave of a space."""
    count = len(allowed.columns.pp)
    return Bounded(
        facts=facts,
        fixed=fixed,
        allowed=allowed,
        memory=np.zeros((len(policies(fixed)), count)),
        asked=np.zeros(count, dtype=bool),
        removed=np.zeros(count, dtype=bool),
        rejected=[],
    )


def without_limit(facts: Facts, fixed: Constraints, allowed: Obeying) -> Bounded:
    """Return the rows that rules leave of a space if every plan fitted."""
    rows = bounded(facts, fixed, allowed)
    return replace(rows, asked=np.ones_like(rows.asked), limited=False)
