"""Rows with floors: what none of their plans falls below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost import time_floor
from parastrat.floors import memory_floor
from parastrat.memory import memory_margin
from parastrat.rules import rejection_masks
from parastrat.search.obeying import Obeying, Rejected, attributed, obeying
from parastrat.search.rows import Constraints
from parastrat.search.space import option_counts, policies

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns

#: rows that are judged sooner than bounded
_FEW = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Rows that obey rules, with floors of their memory and step; where there are few rows, of 0."""

    facts: Facts
    fixed: Constraints
    allowed: Obeying
    #: for each recompute policy that is searched, a row of bytes
    memory: Any
    #: the rows that may fit, and those that may with the margin
    fitting: Any
    roomy: Any
    #: what the floors of memory removed
    rejected: tuple[Rejected, ...]

    @property
    def columns(self) -> Columns:
        return self.allowed.columns

    def may_fit(self, places: Any, *, roomy: bool) -> Any:
        """Return for each policy which of some rows may fit under it, with the margin or without."""
        memory = self.memory[:, places]
        margin = memory_margin(self.facts, memory) if roomy else 0
        return memory + margin <= self.facts.hardware.device.usable_memory_bytes

    def steps(self, places: Any, *, roomy: bool) -> Any:
        """Return the floors of some rows' steps, of plans that fit with the margin or without.

        It is that of the first policy that may fit, because each computes again at least what those before
        it do.
        """
        if len(self.columns.pp) <= _FEW or not len(places):
            return np.zeros(len(places))
        codes = np.array([code_of(policy) for policy in policies(self.fixed)])
        recompute = codes[self.may_fit(places, roomy=roomy).argmax(axis=0)]
        return time_floor(self.facts, self.columns.at(places).joined({"recompute": recompute}))


def bounded(facts: Facts, fixed: Constraints) -> Bounded:
    """Return the rows that rules leave of a space, with their floors."""
    allowed = obeying(facts, fixed)
    columns, ways = allowed.columns, policies(fixed)
    count = len(columns.pp)
    everything = np.arange(count)
    if count <= _FEW:
        return Bounded(
            facts=facts,
            fixed=fixed,
            allowed=allowed,
            memory=np.zeros((len(ways), count)),
            fitting=everything,
            roomy=everything,
            rejected=(),
        )
    memory = memory_floor(facts, columns, ways)
    least, capacity = memory.min(axis=0), facts.hardware.device.usable_memory_bytes
    judged = columns.joined({"memory_total": least, "memory_capacity": capacity, "source": everything})
    # a rule of memory that fires on the floor fires on every plan of the row
    masks = dict(rejection_masks(judged, allowed.judged))
    kept, rejected = attributed(judged, masks, option_counts(fixed, columns))
    margin = memory_margin(facts, kept.memory_total)
    return Bounded(
        facts=facts,
        fixed=fixed,
        allowed=allowed,
        memory=memory,
        fitting=kept.source,
        roomy=kept.source[kept.memory_total + margin <= capacity],
        rejected=rejected,
    )
