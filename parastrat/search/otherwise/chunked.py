"""What a loss in chunks would give, where logits take so much that they decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.search.changes import Changed, loss_in_chunks, within_chunks
from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints


def chunked_loss(facts: Facts, fixed: Constraints, chosen: Case | None, tolerance: float) -> Case | None:
    """Return the recommendation for a loss that makes the logits of some tokens at a time.

    None where the model has no such logits, or where that is neither faster by the tolerance nor simpler
    and as fast within it.

    Args:
        facts: the job.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended; None where nothing can run, of which nearest fits tell more.
        tolerance: as ``find_plan`` took it.
    """
    there, within = loss_in_chunks(Changed(changes=(), facts=facts)), within_chunks(fixed)
    if chosen is None or there is None or within is None:
        return None
    other = recommendation(there.facts, within, tolerance=tolerance)
    if other is None:
        return None
    here, with_chunks = (case.estimate.time.step for case in (chosen, other))
    simpler = other.plan.rung < chosen.plan.rung and with_chunks <= (1 + tolerance) * here
    return other if simpler or (1 + tolerance) * with_chunks <= here else None
