"""Plans that are worth a trial beside a given one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from parastrat.assess import columns_of
from parastrat.case import Case
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.finding import Severity
from parastrat.rules import findings_of
from parastrat.search import Constraints, find_plan
from parastrat.search.shortlist import shortlist

APPLIED = Constraints(applied=True)
PLAIN = Constraints(applied=True, plain_loop=True)


@pytest.mark.parametrize(("fixed", "most"), [(APPLIED, 6), (PLAIN, 4)])
def test_they_may_run_and_are_predicted_fastest_first(fixed: Constraints, most: int) -> None:
    facts = resolved(JobFlags(model="gpt2-xl", on="dgx-a100:1")).facts
    given = find_plan(facts, fixed).chosen
    assert given is not None
    found = shortlist(facts, fixed, given.plan, most)
    assert 0 < len(found) <= most
    assert given.plan not in [case.plan for case in found]
    assert len({case.plan for case in found}) == len(found)
    steps = [case.estimate.time.step for case in found]
    assert steps == sorted(steps)
    # nothing is faster than what is recommended, but for what the ladder left
    assert steps[0] <= 1.5 * given.estimate.time.step
    assert max(Counter(case.plan.mesh for case in found).values()) <= -(-most // 2)
    for case in found:
        assert case.estimate.fits
        found_errors = [
            each.code for each in findings_of(case, columns_of(case)) if each.severity is Severity.ERROR
        ]
        assert found_errors == []


def test_a_plain_loop_is_given_what_it_can_run() -> None:
    facts = resolved(JobFlags(model="gpt2-xl", on="dgx-a100:1")).facts
    given = find_plan(facts, PLAIN).chosen
    assert given is not None
    for case in shortlist(facts, PLAIN, given.plan, 20):
        assert case.plan.gradient_accumulation_steps == 1
        assert case.plan.mesh.pp == case.plan.mesh.tp == 1
    several = shortlist(facts, APPLIED, given.plan, 20)
    assert any(case.plan.gradient_accumulation_steps > 1 for case in several)


def test_policies_that_do_nothing_are_one_plan() -> None:
    """Nothing of a network without blocks is computed again by the selective policy."""
    model = Path(__file__).parents[1] / "runtime" / "small_modules.py"
    facts = resolved(JobFlags(model=f"{model}:Perceptron", on="dgx-a100:1")).facts
    given = find_plan(facts, PLAIN).chosen
    assert given is not None
    found = shortlist(facts, PLAIN, given.plan, 50)
    effects = [(case.plan.mesh, case.plan.micro_batch_size, *_effect(case)) for case in found]
    assert len(set(effects)) == len(effects)


def _effect(case: Case) -> tuple[float, int]:
    return case.estimate.time.step, case.estimate.memory.total
