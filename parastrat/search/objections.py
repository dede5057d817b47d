"""What rules say of plans that they removed: most of it without an estimate of these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from parastrat.case import Case, Unknown
from parastrat.errors import UnknownFactError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from parastrat.case import Facts
    from parastrat.finding import Hit
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule


class Objection(NamedTuple):
    """A rule, and a plan that it removed."""

    rule: PlanRule
    plan: Plan


def unestimated(facts: Facts, objections: Iterable[Objection]) -> dict[Objection, Hit]:
    """Return what rules say of plans, where no estimate is read for it.

    That is all but what rules of memory say: an estimate takes longer than all their words.
    """
    said: dict[Objection, Hit] = {}
    for objection in objections:
        try:
            said[objection] = objection.rule.hit(_without_estimate(facts, objection.plan))
        except UnknownFactError:
            continue
    return said


def told(objection: Objection, said: Mapping[Objection, Hit], case_of: Callable[[Plan], Case]) -> Hit:
    """Return what a rule says of a plan: what was said without an estimate, or of its case."""
    known = said.get(objection)
    return objection.rule.hit(case_of(objection.plan)) if known is None else known


def _without_estimate(facts: Facts, plan: Plan) -> Case:
    unknown: dict[str, Any] = {part: Unknown(part) for part in ("estimate", "launch")}
    return Case(
        model=facts.model,
        hardware=facts.hardware,
        workload=facts.workload,
        stack=facts.stack,
        plan=plan,
        **unknown,
    )
