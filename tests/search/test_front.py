"""The front of memory and time, against every plan of a small space."""

from __future__ import annotations

import pytest
from search.brute_force import every_plan, runnable
from search.test_find_plan import facts

from parastrat.assess import assess
from parastrat.search import Constraints, find_plan
from parastrat.search.front import APART, memory_front

#: of plans as fast as this the simplest is taken
NEAR = 1.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "on", "batch", "length"),
    [("llama-3.1-8b", "dgx-h100:1", 8, 2048), ("gpt2-xl", "h100-sxm5x2:2", 4, 1024)],
)
def test_no_plan_of_the_space_beats_the_front(model: str, on: str, batch: int, length: int) -> None:
    job = facts(model, on, batch, length)
    front = [
        (case.estimate.memory.total, case.estimate.time.step) for case in memory_front(job, Constraints())
    ]
    assert len(front) > 2
    assert front == sorted(front, key=lambda point: (-point[0], point[1]))
    cases = (assess(job, plan) for plan in every_plan(job))
    plans = [(case.estimate.memory.total, case.estimate.time.step) for case in cases if runnable(case)]
    for memory, step in plans:
        # what stands for a plan needs a little more at most, and is as fast
        assert any(own <= memory / (1 - APART) and least <= NEAR * step for own, least in front)
    for memory, step in front:
        assert not any(own <= memory and NEAR * least < step for own, least in plans)


def test_the_first_is_the_fastest_plan_and_all_fit() -> None:
    job = facts("llama-3.1-70b", "dgx-h100:8", 128, 8192)
    front = memory_front(job, Constraints())
    fastest = find_plan(job).fastest
    assert fastest is not None
    assert front[0].estimate.time.step == pytest.approx(fastest.estimate.time.step, rel=NEAR - 1)
    assert all(runnable(case) for case in front)


def test_what_is_fixed_stays_and_nothing_is_shown_where_nothing_fits() -> None:
    job = facts("llama-3.1-70b", "dgx-h100:8", 128, 8192)
    assert {case.plan.mesh.tp for case in memory_front(job, Constraints(tp=4))} == {4}
    assert memory_front(facts("llama-3.1-405b", "dgx-h100:1", 8, 8192), Constraints()) == ()
