"""What torch.compile on every block would give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints


def compiled_blocks(
    there: Facts | None, fixed: Constraints, chosen: Case | None, tolerance: float
) -> Case | None:
    """Return the recommendation with compiled blocks; None where it is not faster by the tolerance.

    Args:
        there: the job with compiled blocks; None where that is no question.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended; None where nothing can run.
        tolerance: as ``find_plan`` took it.
    """
    if there is None or chosen is None:
        return None
    other = recommendation(there, fixed, tolerance=tolerance)
    if other is None or (1 + tolerance) * other.estimate.time.step > chosen.estimate.time.step:
        return None
    return other
