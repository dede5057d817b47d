"""What ``auto_parallelize`` applies where it does not apply the recommendation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.brute_force import every_plan, runnable
from search.test_find_plan import facts

from parastrat.assess import assess_all
from parastrat.case import Facts
from parastrat.plan import Recompute
from parastrat.profiles import load_stack
from parastrat.rules.runtime_support import refusals_of
from parastrat.search import Constraints, find_plan
from parastrat.search.otherwise.applied import applied_instead

TOLERANCE = 0.05
APPLIED = Constraints(applied=True)
#: selective recompute is that of a whole compiled block, which no axis may hook into
KEEPING = Constraints(recompute=Recompute.SELECTIVE)


@pytest.fixture(scope="module")
def compiled() -> Facts:
    """A job of which the recommendation recomputes parts of compiled blocks whose positions are divided."""
    job = facts("llama-3.1-8b", "dgx-a100:8", 64, 131_072)
    return replace(job, stack=load_stack("torch-compile"))


def test_it_is_told_where_the_recommendation_is_not_applied(compiled: Facts) -> None:
    chosen = find_plan(compiled, tolerance=TOLERANCE).chosen
    assert chosen is not None
    assert [finding.code for finding in refusals_of(chosen.plan)] == ["PS296"]
    applied = applied_instead(compiled, Constraints(), chosen, TOLERANCE)
    assert applied is not None
    assert applied.case is not None
    assert refusals_of(applied.case.plan) == ()
    assert applied.case.estimate.time.step > chosen.estimate.time.step


def test_what_is_settled_holds_but_for_experts_that_are_not_divided_so() -> None:
    job = facts("deepseek-v2-lite", "dgx-h100:1", 32, 4096)
    # two ranks of the tp group would hold the same experts
    one = Constraints(dp_replicate=1, dp_shard=1, cp=1, tp=8, micro_batch_size=1)
    for fixed, ep in ((replace(one, ep=4), 8), (replace(one, cp=None, dp_shard=None, tp=4, ep=4), 4)):
        chosen = find_plan(job, fixed, tolerance=TOLERANCE).chosen
        assert chosen is not None
        applied = applied_instead(job, fixed, chosen, TOLERANCE)
        plan = chosen.plan if applied is None or applied.case is None else applied.case.plan
        assert refusals_of(plan) == ()
        assert (plan.mesh.tp, plan.mesh.ep, plan.micro_batch_size) == (fixed.tp, ep, 1)


@pytest.mark.parametrize("name", ["gpt-oss-20b", "gemma-2-9b", "bloom-7b1", "llama-4-scout"])
def test_positions_of_models_that_attend_otherwise_stay_together(name: str) -> None:
    job = facts(name, "dgx-h100:4", 32, 8192)
    chosen = find_plan(job, Constraints(cp=2), tolerance=TOLERANCE).chosen
    assert chosen is not None
    assert "PS397" in {finding.code for finding in refusals_of(chosen.plan, chosen.model)}
    assert find_plan(job, replace(APPLIED, cp=2)).chosen is None
    applied = find_plan(job, APPLIED).chosen
    assert applied is not None
    assert (applied.plan.mesh.cp, refusals_of(applied.plan, applied.model)) == (1, ())


def test_nothing_is_told_of_a_plan_that_is_applied() -> None:
    job = facts("llama-3.1-8b", "dgx-h100:1", 8, 4096)
    chosen = find_plan(job).chosen
    assert chosen is not None
    assert applied_instead(job, Constraints(), chosen, TOLERANCE) is None
    assert applied_instead(job, Constraints(), None, TOLERANCE) is None


def test_where_none_can_run_that_is_told(compiled: Facts) -> None:
    settled = replace(KEEPING, tp=8)
    chosen = find_plan(compiled, settled).chosen
    assert chosen is not None
    applied = applied_instead(compiled, settled, chosen, TOLERANCE)
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


def test_what_is_not_applied_is_rejected_by_its_rule(compiled: Facts) -> None:
    assert "PS296" in {rejection.code for rejection in find_plan(compiled, APPLIED).rejected}
    assert "PS296" not in {rejection.code for rejection in find_plan(compiled).rejected}
    others = find_plan(compiled, APPLIED).alternatives
    assert others
    assert not any(refusals_of(case.plan) for case in others)


def test_flags_are_dropped_but_for_who_runs_the_plan(compiled: Facts) -> None:
    # with these flags layers are divided, of which compiled ones are not recomputed in part
    result = find_plan(compiled, replace(KEEPING, tp=8, applied=True), tolerance=TOLERANCE)
    assert result.chosen is None
    (freed,) = [fit for fit in result.nearest_fit if fit.changes[0].startswith("drop the fixed flags")]
    assert refusals_of(freed.case.plan) == ()
