"""Rows with floors: what none of their plans falls below, whatever its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost import time_floor
from parastrat.floors import memory_floor
from parastrat.memory import memory_margin
from parastrat.rules import rejection_masks
from parastrat.search.obeying import Obeying, Rejected, attributed, obeying
from parastrat.search.rows import Constraints
from parastrat.search.space import option_counts

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns

#: rows that are judged sooner than bounded
_FEW = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """Rows that obey rules, with floors of their memory and step; where there are few rows, of 0."""

    allowed: Obeying
    memory: Any
    #: infinite where the floor of memory does not fit
    step: Any
    #: the rows that may fit, and those that may with the margin
    fitting: Any
    roomy: Any
    #: what the floor of memory removed
    rejected: tuple[Rejected, ...]

    @property
    def columns(self) -> Columns:
        return self.allowed.columns


def bounded(facts: Facts, fixed: Constraints) -> Bounded:
    """Return the rows that rules leave of a space, with their floors."""
    allowed = obeying(facts, fixed)
    columns = allowed.columns
    count = len(columns.pp)
    everything = np.arange(count)
    if count <= _FEW:
        zero = np.zeros(count)
        return Bounded(
            allowed=allowed, memory=zero, step=zero, fitting=everything, roomy=everything, rejected=()
        )
    memory = memory_floor(facts, columns)
    capacity = facts.hardware.device.usable_memory_bytes
    judged = columns.joined({"memory_total": memory, "memory_capacity": capacity, "source": everything})
    # a rule of memory that fires on the floor fires on every plan of the row
    masks = dict(rejection_masks(judged, allowed.judged))
    kept, rejected = attributed(judged, masks, option_counts(fixed, columns))
    step = np.full(count, np.inf)
    if len(kept.source):
        step[kept.source] = time_floor(facts, kept)
    margin = memory_margin(facts, kept.memory_total)
    return Bounded(
        allowed=allowed,
        memory=memory,
        step=step,
        fitting=kept.source,
        roomy=kept.source[kept.memory_total + margin <= capacity],
        rejected=rejected,
    )
