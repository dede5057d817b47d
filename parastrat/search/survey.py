"""The best plans of a space, by rung and by strategy, and what speaks against the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.distinct import places_of
from parastrat.rungs import NEAR
from parastrat.schedules import SPLITS
from parastrat.search.bounded import Searched, searched
from parastrat.search.misfits import nearest
from parastrat.search.obeying import Rejected, obeying
from parastrat.search.objections import Objection
from parastrat.search.rows import AXES, Constraints, plan_at, stacked
from parastrat.search.visited import Wanted, nothing_of

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule

#: a report of more strategies than this is not read
MOST_ALTERNATIVES = 8

#: rungs of the ladder
RUNGS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The plans of a space that may be shown. ``columns`` hold those that can run."""

    columns: Columns
    rejected: tuple[Rejected, ...]
    #: plans of the space
    considered: int
    #: plans that were not judged, because a floor of their step lies above what was found
    bounded: int
    #: the rows that it went through
    space: Searched
    #: by rung, where no plan can run, the one that comes nearest to fitting
    nearest: Mapping[int, Plan] = field(default_factory=dict)

    def plan(self, row: int) -> Plan:
        """Return one of the plans that can run."""
        return plan_at(self.columns, row)


def best(columns: Columns, rows: Any) -> int:
    """Return the fastest of some rows; of plans within 0.5 % the simplest."""
    close = rows[columns.step[rows] <= NEAR * columns.step[rows].min()]
    if len(close) == 1:
        return int(close[0])
    recompute, chunks, schedules, *degrees = (
        getattr(columns, name)[close] for name in ("recompute", "virtual_stages", "pp_schedule", *AXES)
    )
    split = is_any_of(schedules, SPLITS)
    axes = (np.stack(degrees) > 1).sum(axis=0)
    pp, _, _, cp, tp, ep = degrees
    # the last key sorts first
    order = np.lexsort((columns.step[close], ep, pp, cp, tp, chunks, split, recompute, axes))
    return int(close[order[0]])


def best_of_rung(columns: Columns, rung: int) -> int | None:
    """Return the best of a rung, of those with their margin where one has it; None where it has no plan."""
    rows = (columns.rung == rung).nonzero()[0]
    if not len(rows):
        return None
    roomy = rows[columns.roomy[rows]]
    return best(columns, roomy if len(roomy) else rows)


def survey(facts: Facts, fixed: Constraints) -> Survey:
    """Return the best plans of every rung and strategy that the constraints allow."""
    space = searched(facts, fixed, obeying(facts, fixed))
    meshes, found = space.allowed.meshes, nothing_of(space)
    (_, strategies), rungs = places_of(meshes.strategy), meshes.rung
    limits = limits_of_strategies(strategies, rungs)
    found.visit(np.arange(len(rungs)), Wanted(groups=strategies, limits=limits))
    # plans without the margin count where a rung has no other
    poor = np.ones(RUNGS, dtype=bool)
    for each in found.judged:
        poor[each.columns.rung[each.columns.roomy]] = False
    found.visit(np.flatnonzero(poor[rungs]), Wanted(groups=rungs, limits=near, roomy=False))
    fits = in_order([each.columns for each in found.judged], meshes)
    empty = np.ones(RUNGS, dtype=bool)
    empty[fits.rung] = False
    by_rules = space.allowed.rejected
    left_out = sum(entry.count for entry in (*by_rules, *found.misfits))
    return Survey(
        columns=fits,
        rejected=(
            *by_rules,
            *found.misfits,
            *(entry for each in found.judged for entry in (*each.rejected, *each.bounded)),
        ),
        considered=space.allowed.considered,
        bounded=space.allowed.considered - left_out - sum(found.plans),
        space=space,
        nearest=nearest(found, empty),
    )


def near(least: Any) -> Any:
    """Return the limits of groups of which the best plan alone is shown."""
    return NEAR * least


def limits_of_strategies(strategies: Any, rungs: Any) -> Callable[[Any], Any]:
    """Return the limits of strategies: of floors above them no plan is shown.

    Shown are the best of each rung, and the best of the strategies that are fastest. A best plan is at most
    0.5 % slower than the fastest of its strategy, and may be any within that.
    """
    rung_of = np.zeros(int(strategies.max(initial=-1)) + 1, dtype=np.int64)
    rung_of[strategies] = rungs

    def limits(least: Any) -> Any:
        of_rungs = np.full(RUNGS, np.inf)
        own = rung_of[: len(least)]
        np.minimum.at(of_rungs, own, least)
        many = len(least) >= MOST_ALTERNATIVES
        shown = np.sort(least)[MOST_ALTERNATIVES - 1] if many else np.inf
        return NEAR * np.minimum(least, np.maximum(of_rungs[own], NEAR * shown))

    return limits


def in_order(parts: Sequence[Columns], rows: Columns) -> Columns:
    """Return plans in the order of their places, as ties are told."""
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return rows.at(nothing).joined({"step": nothing, "roomy": nothing.astype(bool)})
    columns = stacked(parts)
    return columns.at(np.argsort(columns.place, kind="stable"))


def objection(judged: Survey, rung: int) -> Objection | None:
    """Return the rule that removed most plans of a rung, with one of them; None where none did."""
    counts: dict[PlanRule, int] = {}
    examples: dict[PlanRule, Plan] = {}
    for entry in judged.rejected:
        own = entry.of_rung(rung)
        if own is not None:
            counts[entry.rule] = counts.get(entry.rule, 0) + own.count
            examples.setdefault(entry.rule, own.example)
    if not counts:
        return None
    rule = max(counts, key=lambda each: counts[each])
    return Objection(rule, examples[rule])
