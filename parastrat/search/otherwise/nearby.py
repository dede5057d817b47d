"""What a global batch that divides better would give, where one is close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.search.divisible import with_divisible_batch
from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints


def nearby_batch(facts: Facts, fixed: Constraints, chosen: Case | None, tolerance: float) -> Case | None:
    """Return the recommendation for a global batch close by that more data ranks divide.

    None where the batch is a multiple of the devices, or none close by has more of their divisors, or where
    it gains less than the tolerance in samples a second.

    Args:
        facts: the job.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended; None where nothing can run.
        tolerance: as ``find_plan`` took it.
    """
    there = with_divisible_batch(facts)
    if there is None:
        return None
    other = recommendation(there, fixed, tolerance=tolerance)
    if other is None or (chosen is not None and _pace(other) <= (1 + tolerance) * _pace(chosen)):
        return None
    return other


def _pace(case: Case) -> float:
    return case.workload.global_batch_size / case.estimate.time.step
