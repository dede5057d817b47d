"""What offloading states would give."""

from __future__ import annotations

import pytest
from search.test_find_plan import facts

from parastrat.plan import Offload
from parastrat.search import Constraints, find_plan
from parastrat.search.otherwise.offloaded import offloaded_plan

TOLERANCE = 0.05


@pytest.mark.parametrize(
    ("model", "on"),
    [
        ("llama-2-13b", "8x-rtx-4090:2"),
        ("gpt-neox-20b", "dgx-h100:1"),
        ("gpt2-xl", "dgx-h100:1"),
        ("llama-3.1-70b", "dgx-h100:8"),
        ("mixtral-8x7b", "dgx-a100-40:4"),
    ],
)
def test_it_is_told_where_one_of_both_is_faster_by_the_tolerance(model: str, on: str) -> None:
    job = facts(model, on, 512, 4096)
    chosen = find_plan(job, tolerance=TOLERANCE).chosen
    assert chosen is not None
    others = [
        find_plan(job, Constraints(offload=offload), tolerance=TOLERANCE).chosen
        for offload in (Offload.OPTIMIZER, Offload.PARAMETERS)
    ]
    steps = [other.estimate.time.step for other in others if other is not None]
    told = offloaded_plan(job, Constraints(), chosen, TOLERANCE)
    assert (told is not None) == any((1 + TOLERANCE) * step <= chosen.estimate.time.step for step in steps)
    if told is not None:
        assert told.estimate.time.step == min(steps)
        assert told.plan.offload is not Offload.NONE


def test_nothing_is_said_where_it_is_no_question() -> None:
    job = facts("llama-2-13b", "8x-rtx-4090:2", 512, 4096)
    chosen = find_plan(job).chosen
    assert offloaded_plan(job, Constraints(), chosen, TOLERANCE) is not None
    assert offloaded_plan(job, Constraints(), None, TOLERANCE) is None
    assert offloaded_plan(job, Constraints(applied=True), chosen, TOLERANCE) is None
    assert offloaded_plan(job, Constraints(offload=Offload.OPTIMIZER), chosen, TOLERANCE) is None
    processors = facts("gpt2", "cpu:2", 64, 1024)
    assert offloaded_plan(processors, Constraints(), find_plan(processors).chosen, TOLERANCE) is None


def test_nothing_is_said_of_one_device_that_others_leave_idle() -> None:
    job, alone = facts("gpt2", "dgx-h100:2", 64, 1024), Constraints(strategy="single")
    chosen = find_plan(job, alone).chosen
    assert chosen is not None
    assert offloaded_plan(job, alone, chosen, TOLERANCE) is None
