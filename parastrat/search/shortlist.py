"""A few plans of a job that are worth a trial beside a given one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.assess import assess_all, columns_of
from parastrat.finding import Severity
from parastrat.rules import findings_of
from parastrat.search.choice import find_plan
from parastrat.search.rows import AXES, plan_at
from parastrat.search.space import every_plan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Case, Facts
    from parastrat.plan import Mesh, Plan
    from parastrat.search.rows import Constraints

#: what is predicted to take so many times the fastest's step is not tried
_SLOWEST = 1.5
#: more variants of one mesh than a model's schedules and policies make are not looked at
_MOST_VARIANTS = 2000


def shortlist(facts: Facts, fixed: Constraints, given: Plan, most: int) -> tuple[Case, ...]:
    """Return the plans that are predicted to be fastest, without a given one: of no mesh more than half.

    They are the best of each strategy, and on their meshes and the given one other micro-batches,
    schedules, recompute policies and resharding, as far as no rule forbids them and they fit.

    Args:
        facts: the job.
        fixed: what a plan must have.
        given: what is tried already.
        most: so many at most.
    """
    found = find_plan(facts, fixed)
    best = [case for case in (found.chosen, *found.alternatives) if case is not None]
    meshes = dict.fromkeys((given.mesh, *(case.plan.mesh for case in best)))
    plans = dict.fromkeys(case.plan for case in best)
    for mesh in meshes:
        plans |= dict.fromkeys(_variants(facts, fixed, mesh))
    plans.pop(given, None)
    cases = [case for case in assess_all(facts, tuple(plans)) if may_run(case)]
    return tuple(_of_each(_unlike(sorted(cases, key=_step)), most))


def _variants(facts: Facts, fixed: Constraints, mesh: Mesh) -> Iterator[Plan]:
    """Yield the plans of one mesh."""
    if mesh.world_size != facts.hardware.world_size:
        return
    columns = every_plan(facts, replace(fixed, **{axis: getattr(mesh, axis) for axis in AXES}))
    for row in range(min(len(columns.pp), _MOST_VARIANTS)):
        yield plan_at(columns, row)


def may_run(case: Case) -> bool:
    """Return whether a plan fits and no rule forbids it."""
    broken = (finding.severity is Severity.ERROR for finding in findings_of(case, columns_of(case)))
    return case.estimate.fits and not any(broken)


def _unlike(cases: Sequence[Case]) -> list[Case]:
    """Return plans without those that do what one before does: nothing is there to compute again, say."""
    kept: dict[tuple[object, ...], Case] = {}
    for case in cases:
        plan, estimate = case.plan, case.estimate
        effect = plan.mesh, plan.micro_batch_size, estimate.time.step, estimate.memory.total
        kept.setdefault(effect, case)
    return list(kept.values())


def _of_each(cases: Sequence[Case], most: int) -> Iterator[Case]:
    """Yield so many of some plans in their order, of each mesh half of them at most."""
    counts: dict[Mesh, int] = {}
    for case in cases:
        mesh = case.plan.mesh
        if _step(case) > _SLOWEST * _step(cases[0]) or sum(counts.values()) == most:
            return
        if counts.get(mesh, 0) < -(-most // 2):
            counts[mesh] = counts.get(mesh, 0) + 1
            yield case


def _step(case: Case) -> float:
    return case.estimate.time.step
