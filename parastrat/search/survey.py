"""Every plan of a space judged: what rules reject, what does not fit, how fast the rest is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost import time_columns
from parastrat.memory import memory_columns
from parastrat.rules import rejection_masks
from parastrat.search.space import (
    Constraints,
    batch_columns,
    mesh_columns,
    option_columns,
    plain_options,
    plan_at,
    rungs_of,
    strategies_of,
    with_facts,
)

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule

#: columns that memory's parts give
_MEMORY = {"memory_total": "total", "memory_margin": "margin", "memory_capacity": "capacity"}
#: codes of rules about memory, whose rows may come near to fitting
_MEMORY_CODES = "PS1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rows that one rule removed."""

    rule: PlanRule
    columns: Columns
    rows: Any

    @property
    def example(self) -> Plan:
        """The first of the plans."""
        return plan_at(self.columns, int(self.rows[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """A judged space. ``columns`` hold the plans that can run, ``step`` their seconds."""

    facts: Facts
    columns: Columns
    step: Any
    #: the plan fits with its margin
    roomy: Any
    rungs: Any
    strategies: Any
    rejected: tuple[Rejected, ...]
    considered: int

    def plan(self, row: int) -> Plan:
        """Return one of the plans that can run."""
        return plan_at(self.columns, row)

    def best(self, rows: Any) -> int:
        """Return the fastest of some rows; of plans within 0.5 % the simplest."""
        near = rows[self.step[rows] <= 1.005 * self.step[rows].min()]
        columns = self.columns.at(near)
        axes = sum(
            (degree > 1).astype(int)
            for degree in (
                columns.pp,
                columns.dp_replicate,
                columns.dp_shard,
                columns.cp,
                columns.tp,
                columns.ep,
            )
        )
        # the last key sorts first
        order = np.lexsort(
            (
                self.step[near],
                columns.ep,
                columns.pp,
                columns.cp,
                columns.tp,
                columns.virtual_stages,
                columns.recompute,
                axes,
            )
        )
        return int(near[order[0]])


def survey(facts: Facts, fixed: Constraints) -> Survey:
    """Judge every plan that the constraints allow."""
    table = batch_columns(facts, fixed, mesh_columns(facts, fixed))
    columns = _of_strategy(with_facts(facts, fixed, plain_options(table)), fixed)
    columns, rejected = _obeying(columns)
    kept = {name: column for name, column in columns.known().items() if name in table}
    columns = with_facts(facts, fixed, option_columns(fixed, kept))
    considered = len(columns.pp) + sum(len(entry.rows) for entry in rejected)
    columns, more = _obeying(columns)
    columns, unfit = _obeying(_undominated(facts, columns))
    return Survey(
        facts=facts,
        columns=columns,
        step=time_columns(facts, columns)["step"] if len(columns.pp) else np.zeros(0),
        roomy=columns.memory_total + columns.memory_margin <= columns.memory_capacity,
        rungs=rungs_of(columns),
        strategies=strategies_of(columns),
        rejected=(*rejected, *more, *unfit),
        considered=considered,
    )


def _undominated(facts: Facts, columns: Columns) -> Columns:
    """Return the rows that may win, with their memory.

    Of plans that differ in recompute alone, one without any that fits with its margin is at least as fast
    as the others, and goes before them where times are equal: those are left out.
    """
    least = columns.recompute == columns.recompute.min(initial=0)
    first = np.flatnonzero(least)
    found = _memory(facts, columns, first)
    roomy = found["memory_total"] + found["memory_margin"] <= found["memory_capacity"]
    settled = np.zeros(int(columns.family.max(initial=0)) + 1, dtype=bool)
    settled[columns.family[first[roomy]]] = True
    others = np.flatnonzero(~least & ~settled[columns.family])
    more = _memory(facts, columns, others)
    joined = {name: np.concatenate([found[name], more[name]]) for name in _MEMORY}
    return columns.at(np.concatenate([first, others])).joined(joined)


def _memory(facts: Facts, columns: Columns, rows: Any) -> dict[str, Any]:
    found = memory_columns(facts, columns.at(rows))
    return {name: found[part] + np.zeros_like(rows) for name, part in _MEMORY.items()}


def _of_strategy(columns: Columns, fixed: Constraints) -> Columns:
    """Return the rows of the strategy that the user named, if any."""
    if fixed.strategy is None:
        return columns
    codes = strategies_of(columns)
    wanted = [
        code
        for code in sorted(set(codes.tolist()))
        if plan_at(columns, int(np.argmax(codes == code))).strategy == fixed.strategy
    ]
    return columns.at(np.flatnonzero(np.isin(codes, wanted)))


def _obeying(columns: Columns) -> tuple[Columns, tuple[Rejected, ...]]:
    """Return the rows that no error rule rejects, and per rule those that it rejected first."""
    alive = np.ones(len(columns.pp), dtype=bool)
    rejected = []
    for rule, mask in rejection_masks(columns):
        rows = np.flatnonzero(alive & mask)
        if len(rows):
            rejected.append(Rejected(rule=rule, columns=columns, rows=rows))
            alive[rows] = False
    return columns.at(np.flatnonzero(alive)), tuple(rejected)


def nearest_plan(judged: Survey, rung: int) -> Plan | None:
    """Return the plan of a rung that comes nearest to fitting, of those that rules of memory removed."""
    best: Plan | None = None
    least = np.inf
    for entry in judged.rejected:
        if not entry.rule.code.startswith(_MEMORY_CODES):
            continue
        here = entry.rows[rungs_of(entry.columns)[entry.rows] == rung]
        if len(here):
            totals = entry.columns.memory_total[here]
            if totals.min() < least:
                least, best = totals.min(), plan_at(entry.columns, int(here[totals.argmin()]))
    return best


def objection(judged: Survey, rung: int) -> tuple[PlanRule, Plan] | None:
    """Return the rule that removed most plans of a rung, with one of them; None where none did."""
    counts = [(entry, entry.rows[rungs_of(entry.columns)[entry.rows] == rung]) for entry in judged.rejected]
    if not any(len(rows) for _, rows in counts):
        return None
    entry, rows = max(counts, key=lambda pair: len(pair[1]))
    return entry.rule, plan_at(entry.columns, int(rows[0]))
