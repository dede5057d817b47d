"""What ``auto_parallelize`` applies where it does not apply the recommendation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.plan import Offload
from parastrat.result import Applied
from parastrat.rules.runtime_support import refusals_of
from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints


def applied_instead(
    facts: Facts, fixed: Constraints, chosen: Case | None, tolerance: float
) -> Applied | None:
    """Return the recommendation among plans that ``auto_parallelize`` applies; None if it applies that one.

    What was settled holds there too, but not a strategy, or what is offloaded, which it does not apply; nor
    ep, where it applies no plan with it.

    Args:
        facts: the job.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended; None where nothing can run.
        tolerance: as ``find_plan`` took it.
    """
    if chosen is None or not refusals_of(chosen.plan, chosen.model):
        return None
    instead = replace(fixed, applied=True, strategy=None, offload=Offload.NONE)
    case = recommendation(facts, instead, tolerance=tolerance)
    if case is None and fixed.ep is not None:
        case = recommendation(facts, replace(instead, ep=None), tolerance=tolerance)
    return Applied(case=case)
