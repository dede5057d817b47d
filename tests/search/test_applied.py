"""What ``auto_parallelize`` applies where it does not apply the recommendation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.brute_force import every_plan, runnable
from search.test_find_plan import facts

from parastrat.assess import assess_all
from parastrat.case import Facts
from parastrat.profiles import load_stack
from parastrat.rules.runtime_support import refusals_of
from parastrat.search import Constraints, find_plan
from parastrat.search.otherwise.applied import applied_instead

TOLERANCE = 0.05
APPLIED = Constraints(applied=True)


@pytest.fixture(scope="module")
def staged() -> Facts:
    """A job of which the recommendation divides experts beside stages."""
    return facts("qwen3-235b-a22b", "lambda-8x-v100:64", 512, 4096)


def test_it_is_told_where_the_recommendation_is_not_applied(staged: Facts) -> None:
    chosen = find_plan(staged, tolerance=TOLERANCE).chosen
    assert chosen is not None
    assert [finding.code for finding in refusals_of(chosen.plan)] == ["PS290"]
    applied = applied_instead(staged, Constraints(), chosen, TOLERANCE)
    assert applied is not None
    assert applied.case is not None
    assert refusals_of(applied.case.plan) == ()
    assert applied.case.estimate.time.step > chosen.estimate.time.step


def test_what_is_settled_holds_but_for_axes_that_are_not_applied(staged: Facts) -> None:
    usual = facts("deepseek-v2-lite", "dgx-h100:4", 256, 8192)
    dense = facts("llama-3.1-70b", "dgx-h100:8", 256, 8192)
    for job, fixed, cp, ep in (
        (staged, Constraints(cp=8, ep=128), 8, 128),
        (usual, Constraints(pp=2, ep=8), 1, 1),
        (dense, Constraints(pp=2, cp=2), 1, 1),
    ):
        settled = replace(fixed, micro_batch_size=1)
        applied = applied_instead(job, settled, find_plan(job, settled).chosen, TOLERANCE)
        assert applied is not None
        assert applied.case is not None
        plan = applied.case.plan
        assert (plan.mesh.cp, plan.mesh.ep, plan.micro_batch_size) == (cp, ep, 1)
        assert plan.mesh.pp == (fixed.pp or 1)


def test_nothing_is_told_of_a_plan_that_is_applied() -> None:
    job = facts("llama-3.1-8b", "dgx-h100:1", 8, 4096)
    chosen = find_plan(job).chosen
    assert chosen is not None
    assert applied_instead(job, Constraints(), chosen, TOLERANCE) is None
    assert applied_instead(job, Constraints(), None, TOLERANCE) is None


def test_where_none_can_run_that_is_told() -> None:
    # more ranks than samples: they fit beside stages alone
    job = facts("gpt-oss-20b", "summit:128", 512, 4096)
    chosen = find_plan(job).chosen
    assert chosen is not None
    applied = applied_instead(job, Constraints(), chosen, TOLERANCE)
    assert applied is not None
    assert applied.case is None


@pytest.mark.parametrize("stack", ["torch", "torch-compile"])
@pytest.mark.parametrize(("batch", "length"), [(4, 4096), (8, 4096), (8, 131_072)])
def test_of_the_plans_that_are_applied_none_is_faster(stack: str, batch: int, length: int) -> None:
    job = replace(facts("llama-3.1-8b", "dgx-h100:1", batch, length), stack=load_stack(stack))
    found = find_plan(job, APPLIED, tolerance=0.0)
    plans = [plan for plan in every_plan(job) if not refusals_of(plan)]
    cases = [case for case in assess_all(job, plans) if runnable(case)]
    assert (found.chosen is None) == (not cases)
    if found.chosen is not None:
        best = min(case.estimate.time.step for case in cases)
        assert best <= found.chosen.estimate.time.step * (1 + 1e-9) <= 1.005 * best


def test_what_is_not_applied_is_rejected_by_its_rule(staged: Facts) -> None:
    codes = {rejection.code for rejection in find_plan(staged, APPLIED).rejected}
    assert "PS290" in codes
    assert "PS290" not in {rejection.code for rejection in find_plan(staged).rejected}
    others = find_plan(staged, APPLIED).alternatives
    assert others
    assert not any(refusals_of(case.plan) for case in others)


def test_flags_are_dropped_but_for_who_runs_the_plan(staged: Facts) -> None:
    # without these flags the fastest divides experts, which is not applied
    result = find_plan(staged, Constraints(cp=1, tp=1, pp=1, applied=True), tolerance=TOLERANCE)
    assert result.chosen is None
    (freed,) = [fit for fit in result.nearest_fit if fit.changes[0].startswith("drop the fixed flags")]
    assert refusals_of(freed.case.plan) == ()
