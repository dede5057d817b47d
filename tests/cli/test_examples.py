from __future__ import annotations

import pytest

from parastrat.cli.examples import example_of
from parastrat.rules import PLAN_RULES, rule_named


def test_an_example_is_a_case_that_the_rule_fires_on() -> None:
    rule = rule_named("PS201")
    assert rule is not None
    example = example_of(rule)
    assert example is not None
    where, hit = example
    assert where == "llama-3.1-8b on dgx-h100:2 with dp_shard 3 x tp 5"
    assert "32 heads" in hit.message


@pytest.mark.parametrize("code", ["PS101", "PS106", "PS202", "PS206", "PS401", "PS410", "PS701", "PS801"])
def test_common_rules_have_an_example(code: str) -> None:
    rule = rule_named(code)
    assert rule is not None
    assert example_of(rule) is not None


def test_most_plan_rules_have_an_example() -> None:
    without = [rule.code for rule in PLAN_RULES if example_of(rule) is None]
    assert len(without) <= len(PLAN_RULES) / 6, without
