"""Rows with all their options, judged by memory, rules and time."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost import time_columns
from parastrat.memory import memory_margin, memory_totals
from parastrat.rules import rejection_masks
from parastrat.search.obeying import Rejected, attributed
from parastrat.search.rows import Constraints, stacked
from parastrat.search.space import option_columns, policies, recompute_columns, reshard_columns

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.rules import PlanRule

#: so few plans are judged together, the dominated among them too
_FEW = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Plans of some rows: those that can run, and those that cannot.

    The former have ``step`` in seconds, whether they are ``roomy``, and ``source``, the place of their row.
    """

    columns: Columns
    rejected: tuple[Rejected, ...]

    def least_steps(self, rows: int, *, roomy: bool) -> Any:
        """Return each row's least step, infinite where no plan of it can run (with the margin)."""
        columns, least = self.columns, np.full(rows, np.inf)
        np.minimum.at(least, columns.source, np.where(columns.roomy | (not roomy), columns.step, np.inf))
        return least


def with_memory(facts: Facts, columns: Columns) -> Columns:
    """Return plans with their memory, and whether they fit with its margin of error."""
    total, capacity = memory_totals(facts, columns), facts.hardware.device.usable_memory_bytes
    margin = memory_margin(facts, total)
    return columns.joined(
        {
            "memory_total": total,
            "memory_margin": margin,
            "memory_capacity": capacity,
            "roomy": total + margin <= capacity,
        }
    )


def judge(facts: Facts, fixed: Constraints, rows: Columns, judged: Container[PlanRule]) -> Judged:
    """Judge the plans of some rows by the rules that were not, and time those that can run."""
    columns = _undominated(facts, fixed, rows.joined({"source": np.arange(len(rows.pp))}))
    kept, rejected = attributed(columns, dict(rejection_masks(columns, judged)))
    step = time_columns(facts, kept)["step"] if len(kept.pp) else np.zeros(0)
    return Judged(columns=kept.joined({"step": step}), rejected=rejected)


def _undominated(facts: Facts, fixed: Constraints, rows: Columns) -> Columns:
    """Return the plans of some rows that may win, with their memory.

    Of plans that differ in recompute alone, one without any that fits with its margin is at least as fast
    as the others, and goes before them where times are equal: those are left out.
    """
    least, *others = policies(fixed)
    if len(rows.pp) * (1 + len(others)) <= _FEW:
        return with_memory(facts, option_columns(fixed, rows))
    resharded = reshard_columns(rows)
    first = with_memory(facts, recompute_columns(resharded, least))
    again = resharded.at(np.flatnonzero(~first.roomy))
    if not others or not len(again.pp):
        return first
    more = stacked([recompute_columns(again, policy) for policy in others])
    return stacked([first, with_memory(facts, more)])
