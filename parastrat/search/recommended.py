"""The recommendation alone, where nothing is asked of what it was chosen from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.collection import without_collection
from parastrat.rungs import TOLERANCE
from parastrat.search.alone import assessed_with_one_device
from parastrat.search.fastest import able_space, fitting_of
from parastrat.search.ladder import Standing, choose_rung, eligible
from parastrat.search.rows import plan_at
from parastrat.search.survey import RUNGS, best_of_rung, near
from parastrat.search.visited import Wanted

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.plan import Plan
    from parastrat.search.alone import Alone
    from parastrat.search.rows import Constraints


@without_collection()
def recommendation(facts: Facts, fixed: Constraints, *, tolerance: float = TOLERANCE) -> Case | None:
    """Return the plan that ``find_plan`` chooses, found sooner; None where nothing fits.

    Args:
        facts: model, hardware, workload and stack.
        fixed: what the user settled beforehand.
        tolerance: share by which a lower rung may be slower than the fastest and still be taken.
    """
    picks = _contenders(facts, fixed, tolerance)
    cases, alone = assessed_with_one_device(facts, fixed, [(facts, plan) for plan in picks.values()])
    standings = {rung: Standing(case=case) for rung, case in zip(picks, cases, strict=True)}
    if alone is not None:
        standings[0] = Standing(case=_best_alone(alone))
    taken = choose_rung(standings, tolerance)
    return None if taken is None else eligible(standings)[taken]


def _contenders(facts: Facts, fixed: Constraints, tolerance: float) -> dict[int, Plan]:
    """Return the best plans of the rungs that may be stood on, and maybe slower ones of others."""
    space = able_space(facts, fixed)
    if space is None:
        return {}

    def limits(least: Any) -> Any:
        # the best plan of the fastest rung may be slower than its fastest
        return near(np.minimum(least, (1 + tolerance) * near(least.min())))

    fits = fitting_of(space, Wanted(groups=space.allowed.meshes.rung, limits=limits))
    rows = {rung: best_of_rung(fits, rung) for rung in range(RUNGS)}
    return {rung: plan_at(fits, row) for rung, row in rows.items() if row is not None}


def _best_alone(alone: Alone) -> Case | None:
    able = alone.survey()
    row = best_of_rung(able.columns, 0)
    return None if row is None else alone.case(able.plan(row))
