"""Of plans that do not fit the nearest to it, against every plan of a space."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from search.test_find_plan import facts

from parastrat.rules import rejection_masks
from parastrat.rules.host_memory import host_memory_is_too_small
from parastrat.rules.memory import does_not_fit
from parastrat.search import Constraints
from parastrat.search.bounded import Searched
from parastrat.search.judged import with_memory
from parastrat.search.misfits import _Nearest, nearest_of
from parastrat.search.obeying import attributed
from parastrat.search.space import every_plan
from parastrat.search.survey import survey

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.search.bounded import Bounded

OF_MEMORY = (does_not_fit, host_memory_is_too_small)
JOBS = [
    ("nemotron-h-56b", "8x-rtx-4090:6", 192, 4096),
    ("mixtral-8x22b", "dgx-1v:4", 64, 4096),
    ("llama-3.1-405b", "8x-rtx-4090:8", 128, 8192),
    ("deepseek-v3", "dgx-a100-40:4", 64, 2048),
]


def nearest_of_all(job: Facts) -> dict[int, Plan]:
    """Return of each rung the plan that needs the least, of every plan of a space."""
    plans = with_memory(job, every_plan(job, Constraints()))
    allowed = np.ones(len(plans.pp), dtype=bool)
    for rule, mask in rejection_masks(plans):
        allowed &= np.logical_not(mask) | (rule in OF_MEMORY)
    plans = plans.at(np.flatnonzero(allowed))
    return nearest_of(attributed(plans, dict(rejection_masks(plans)))[1])


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_the_nearest_of_each_rung_is_that_of_all_plans(job: Any) -> None:
    given = facts(*job)
    found = survey(given, Constraints())
    assert not found.space.few
    assert not len(found.columns.pp)
    assert found.nearest == nearest_of_all(given)


def test_of_most_meshes_rows_are_not_looked_at_once_those_of_a_few_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given, looked_at = facts("deepseek-v3", "summit:128", 15360, 4096), list[int]()
    with_quick_floors, few = Searched.with_quick_floors, _Nearest.few

    def noted(space: Searched, rows: Columns, *least: Any, closer: bool = True) -> Bounded:
        looked_at.append(len(rows.mesh))
        return with_quick_floors(space, rows, *least, closer=closer)

    def once(plans: _Nearest, rows: Bounded, least: Any, wanted: Any = None) -> Any:
        return few(plans, rows, least, np.isinf(least) if wanted is None else wanted)

    monkeypatch.setattr(Searched, "with_quick_floors", noted)
    nearest, each_time = survey(given, Constraints()).nearest, sum(looked_at)
    looked_at.clear()
    monkeypatch.setattr(_Nearest, "few", once)
    assert survey(given, Constraints()).nearest == nearest
    assert each_time < 0.8 * sum(looked_at)
