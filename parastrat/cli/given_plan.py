"""The plan that flags describe, its open settings chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parastrat.assess import assess, assess_all, columns_of
from parastrat.cli.strategies import SINGLE, given_mesh, strategy_of
from parastrat.finding import Severity
from parastrat.plan import Shard
from parastrat.rules import findings_of
from parastrat.search import Constraints
from parastrat.search.choice import single_device
from parastrat.search.space import batch_columns, mesh_columns, option_columns, plan_at, with_facts
from parastrat.search.survey import survey

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.cli.flags import FixedFlags
    from parastrat.plan import Plan

#: memory decides among plans that break no other rule
_MEMORY_CODES = "PS1"


def given_case(facts: Facts, fixed: FixedFlags) -> Case:
    """Return the plan of a mesh that flags fix; micro-batch, recompute and schedule are searched.

    Chosen is the fastest that fits; where none does, or every one breaks a rule, the one that breaks the
    fewest and needs the least memory, so that it can be shown what is wrong with it.

    Raises:
        UsageError: the degrees cannot be a mesh over all devices.
    """
    strategy = strategy_of(fixed)
    if strategy is not None and strategy.name == SINGLE and facts.hardware.world_size > 1:
        facts = replace(facts, hardware=single_device(facts.hardware))
    mesh, shard = given_mesh(fixed, facts.hardware)
    constraints = Constraints(
        pp=mesh.pp,
        dp_replicate=mesh.dp_replicate,
        dp_shard=mesh.dp_shard,
        cp=mesh.cp,
        tp=mesh.tp,
        ep=mesh.ep,
        micro_batch_size=fixed.micro_batch,
        recompute=fixed.recompute,
    )
    if shard in (Shard.NONE, Shard.PARAMETERS):
        plan = _best(facts, constraints)
        if plan is not None:
            return assess(facts, plan)
    return _least_bad(facts, constraints, shard)


def _best(facts: Facts, constraints: Constraints) -> Plan | None:
    """Return the plan that the search would take; None when it rejects all."""
    judged = survey(facts, constraints)
    rows = np.flatnonzero(judged.roomy)
    if not len(rows):
        rows = np.arange(len(judged.step))
    return judged.plan(judged.best(rows)) if len(rows) else None


def _least_bad(facts: Facts, constraints: Constraints, shard: Shard) -> Case:
    table = option_columns(constraints, batch_columns(facts, constraints, mesh_columns(facts, constraints)))
    columns = with_facts(facts, constraints, table)
    plans = [replace(plan_at(columns, row), shard=shard) for row in range(len(columns.pp))]
    return min(assess_all(facts, plans), key=_badness)


def _badness(case: Case) -> tuple[int, bool, float]:
    broken = sum(
        finding.severity is Severity.ERROR and not finding.code.startswith(_MEMORY_CODES)
        for finding in findings_of(case, columns_of(case))
    )
    estimate = case.estimate
    return broken, not estimate.fits, estimate.time.step if estimate.fits else estimate.memory.total
