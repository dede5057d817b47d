"""The best plans of a space, found without judging all of it.

Rows of meshes with micro-batch and schedule are visited in the order of a floor of their step, options and
all; a row whose floor lies above what was found is left out. So is one whose floor of memory does not fit.
Of many rows these floors are computed for some at a time, in the order of a lower one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.rules import rejection_masks
from parastrat.search.best_first import visit, visit_many
from parastrat.search.bounded import Bounded, bounded
from parastrat.search.judged import Judged, judge, with_memory
from parastrat.search.obeying import Obeying, Rejected, attributed, obeying
from parastrat.search.rows import AXES, Constraints, plan_at, stacked
from parastrat.search.space import option_columns, option_counts

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule

#: a report of more strategies than this is not read
MOST_ALTERNATIVES = 8

#: of plans as near as this the simplest is taken
NEAR = 1.005

_RUNGS = 6

#: of so many rows floors are computed some at a time
_MANY = 16000

#: codes of rules about memory, whose rows may come near to fitting
_MEMORY_CODES = "PS1"


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
    allowed: Obeying
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
    recompute, chunks, *degrees = (
        getattr(columns, name)[close] for name in ("recompute", "virtual_stages", *AXES)
    )
    axes = (np.stack(degrees) > 1).sum(axis=0)
    pp, _, _, cp, tp, ep = degrees
    # the last key sorts first
    order = np.lexsort((columns.step[close], ep, pp, cp, tp, chunks, recompute, axes))
    return int(close[order[0]])


def survey(facts: Facts, fixed: Constraints) -> Survey:
    """Return the best plans of every rung and strategy that the constraints allow."""
    rows = bounded(facts, fixed, obeying(facts, fixed))
    strategies, rungs = _numbered(rows.columns.strategy), rows.columns.rung
    limits = limits_of_strategies(strategies, rungs)
    if len(rungs) > _MANY:
        rows.ask_of_meshes()
    found, waiting = visited(rows, (np.flatnonzero(~rows.removed), strategies), limits, roomy=True)
    # plans without the margin count where a rung has no other
    poor = np.ones(_RUNGS, dtype=bool)
    for each in found:
        poor[each.columns.rung[each.columns.roomy]] = False
    tight = np.flatnonzero(waiting & poor[rungs] & ~rows.removed)
    more, late = visited(rows, (tight, rungs), near, roomy=False)
    fits = in_order([each.columns for each in (*found, *more)], rows.columns)
    empty = np.ones(_RUNGS, dtype=bool)
    empty[fits.rung] = False
    left = waiting & late & ~rows.removed
    return Survey(
        columns=fits,
        rejected=(
            *rows.allowed.rejected,
            *rows.rejected,
            *(entry for each in (*found, *more) for entry in (*each.rejected, *each.bounded)),
        ),
        considered=rows.allowed.considered,
        bounded=int(option_counts(fixed, rows.columns)[left].sum()),
        allowed=rows.allowed,
        nearest=_nearest(rows, (empty, waiting & late), (*found, *more)),
    )


def visited(
    rows: Bounded, chosen: tuple[Any, Any], limits: Callable[[Any], Any], *, roomy: bool
) -> tuple[list[Judged], Any]:
    """Judge those of the chosen rows that may be the best of their groups; return also which wait."""
    places, groups = chosen
    found: list[Judged] = []
    waiting = np.ones(len(groups), dtype=bool)
    many = len(places) > _MANY
    if not many:
        places = places[rows.able(places, roomy=roomy)]
    if not len(places):
        return found, waiting
    # of many rows micro-batches are timed for all at once, of others for those alone that may fit
    blocks = None if rows.few else rows.blocks(places)

    def least_steps(few: Any) -> Any:
        waiting[places[few]] = False
        found.append(judge(rows, places[few], blocks and blocks.rows(few)))
        return found[-1].least_steps(len(few), roomy=roomy)

    def raised(some: Any) -> Any:
        able, floors = rows.able(places[some], roomy=roomy), np.full(len(some), np.inf)
        floors[able] = rows.steps(places[some[able]], blocks and blocks.rows(some[able]), roomy=roomy)
        return floors

    if many:
        visit_many(rows.works(places, blocks), groups[places], raised, least_steps, limits)
    else:
        visit(rows.steps(places, blocks, roomy=roomy), groups[places], least_steps, limits)
    return found, waiting


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
        of_rungs = np.full(_RUNGS, np.inf)
        own = rung_of[: len(least)]
        np.minimum.at(of_rungs, own, least)
        many = len(least) >= MOST_ALTERNATIVES
        shown = np.sort(least)[MOST_ALTERNATIVES - 1] if many else np.inf
        return NEAR * np.minimum(least, np.maximum(of_rungs[own], NEAR * shown))

    return limits


def _numbered(codes: Any) -> Any:
    """Return codes as numbers from 0, in their order."""
    return (np.cumsum(np.bincount(codes) > 0) - 1)[codes]


def in_order(parts: Sequence[Columns], rows: Columns) -> Columns:
    """Return plans in the order of their places, as ties are told."""
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return rows.at(nothing).joined({"step": nothing, "roomy": nothing.astype(bool)})
    columns = stacked(parts)
    return columns.at(np.argsort(columns.place, kind="stable"))


def _nearest(rows: Bounded, chosen: tuple[Any, Any], found: Sequence[Judged]) -> dict[int, Plan]:
    """Return of each chosen rung the plan that needs the least, of those that rules of memory removed.

    Rows of which a plan was not judged are visited in the order of their floors of memory.
    """
    empty, waiting = chosen
    nearest: dict[int, tuple[float, int, Plan]] = {}
    for entry in (entry for each in found for entry in each.rejected):
        if entry.rule.code.startswith(_MEMORY_CODES):
            _keep_nearest(nearest, entry.columns.at(entry.rows[empty[entry.columns.rung[entry.rows]]]))
    rungs = rows.columns.rung
    limit = np.array([nearest[rung][0] if rung in nearest else np.inf for rung in range(_RUNGS)])
    floors = rows.memory.min(axis=0)
    left = np.flatnonzero(empty[rungs] & (floors <= limit[rungs]))
    left = left[waiting[left] | ~rows.may_fit(left, roomy=False).all(axis=0)]

    def least_memory(some: Any) -> Any:
        own = rows.columns.at(left[some]).joined({"source": np.arange(len(some))})
        plans = with_memory(rows.facts, option_columns(rows.fixed, own))
        _, rejected = attributed(plans, dict(rejection_masks(plans, rows.allowed.judged)))
        least = np.full(len(some), np.inf)
        for entry in rejected:
            if entry.rule.code.startswith(_MEMORY_CODES):
                misfits = plans.at(entry.rows)
                np.minimum.at(least, misfits.source, misfits.memory_total)
                _keep_nearest(nearest, misfits)
        return least

    def refined(some: Any) -> Any:
        unasked = left[some][~rows.asked[left[some]]]
        rows.refine(unasked)
        return rows.memory[:, left[some]].min(axis=0)

    if rows.asked[left].all():
        visit(floors[left], rungs[left], least_memory, lambda least: least)
    else:
        visit_many(floors[left], rungs[left], refined, least_memory, lambda least: least)
    return {rung: plan for rung, (_, _, plan) in nearest.items()}


def nearest_of(rejected: Sequence[Rejected]) -> dict[int, Plan]:
    """Return of each rung the plan that needs the least, of those that rules of memory removed."""
    nearest: dict[int, tuple[float, int, Plan]] = {}
    for entry in rejected:
        if entry.rule.code.startswith(_MEMORY_CODES):
            _keep_nearest(nearest, entry.columns.at(entry.rows))
    return {rung: plan for rung, (_, _, plan) in nearest.items()}


def _keep_nearest(nearest: dict[int, tuple[float, int, Plan]], misfits: Columns) -> None:
    order = np.lexsort((misfits.place, misfits.memory_total))
    for rung in sorted(set(misfits.rung.tolist())):
        row = int(order[np.argmax(misfits.rung[order] == rung)])
        key = (float(misfits.memory_total[row]), int(misfits.place[row]))
        if rung not in nearest or key < nearest[rung][:2]:
            nearest[rung] = (*key, plan_at(misfits, row))


def objection(judged: Survey, rung: int) -> tuple[PlanRule, Plan] | None:
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
    return rule, examples[rule]
