"""The plan that flags describe, its open settings chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.assess import assess, assess_all, columns_of
from parastrat.cli.facts import check_countable
from parastrat.cli.fixed import constraints_of
from parastrat.cli.stages import check_stages
from parastrat.cli.strategies import SINGLE, given_mesh, strategy_of, unusual_shard
from parastrat.finding import Severity
from parastrat.rules import findings_of
from parastrat.search.alone import single_device
from parastrat.search.fastest import fastest_plan
from parastrat.search.rows import AXES, plan_at
from parastrat.search.space import every_plan

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.cli.flags import FixedFlags
    from parastrat.plan import Shard
    from parastrat.search import Constraints

#: memory decides among plans that break no other rule
_MEMORY_CODES = "PS1"


def given_case(facts: Facts, fixed: FixedFlags) -> Case:
    """Return the plan of a mesh that flags fix; micro-batch, recompute and schedule are searched.

    Chosen is the fastest that fits; where none does, or every one breaks a rule, the one that breaks the
    fewest and needs the least memory, so that it can be shown what is wrong with it.

    Raises:
        UsageError: the degrees cannot be a mesh over all devices, or the micro-batch is of absurd size.
    """
    strategy = strategy_of(fixed)
    if strategy is not None and strategy.name == SINGLE and facts.hardware.world_size > 1:
        facts = replace(facts, hardware=single_device(facts.hardware))
    mesh = given_mesh(fixed, facts.hardware)
    check_stages(replace(fixed, pp=mesh.pp), facts)
    check_countable(fixed.micro_batch or 1, facts.workload.sequence_length, "a micro-batch")
    degrees = {axis: getattr(mesh, axis) for axis in AXES}
    constraints = constraints_of(replace(fixed, **degrees))
    shard = unusual_shard(fixed)
    plan = fastest_plan(facts, constraints) if shard is None else None
    return _least_bad(facts, constraints, shard) if plan is None else assess(facts, plan)


def _least_bad(facts: Facts, constraints: Constraints, shard: Shard | None) -> Case:
    columns = every_plan(facts, constraints)
    plans = [plan_at(columns, row) for row in range(len(columns.pp))]
    if shard is not None:
        plans = [replace(plan, shard=shard) for plan in plans]
    return min(assess_all(facts, plans), key=_badness)


def _badness(case: Case) -> tuple[int, bool, float, float]:
    broken = sum(
        finding.severity is Severity.ERROR and not finding.code.startswith(_MEMORY_CODES)
        for finding in findings_of(case, columns_of(case))
    )
    estimate = case.estimate
    excess = 0 if estimate.fits else estimate.memory.total
    return broken, not estimate.fits, excess, estimate.time.step
