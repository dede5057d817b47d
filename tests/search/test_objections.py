"""What rules say of plans that they removed, and which of these are estimated for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from search.test_find_plan import facts

from parastrat.assess import assess
from parastrat.rules.memory import does_not_fit
from parastrat.search import Constraints, choice, find_plan
from parastrat.search.objections import Objection, unestimated
from parastrat.search.survey import survey

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from parastrat.assess import BlocksOf
    from parastrat.case import Case, Facts
    from parastrat.plan import Plan
    from parastrat.search.alone import Alone


def test_rules_say_without_an_estimate_what_they_say_with_one() -> None:
    job = facts("falcon-7b", "dgx-1v:2", 96, 2048)
    removed = [Objection(entry.rule, entry.example) for entry in survey(job, Constraints()).rejected]
    said = unestimated(job, removed)
    assert {each.rule for each in removed} - {each.rule for each in said} == {does_not_fit}
    assert len({each.rule for each in said}) > 3
    for objection, hit in said.items():
        assert hit == objection.rule.hit(assess(job, objection.plan))


def test_of_what_rules_removed_only_what_tells_of_memory_is_estimated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    estimated: list[Plan] = []
    assessed = choice.assessed_with_one_device

    def noted(
        job: Facts, fixed: Constraints, several: Sequence[tuple[Facts, Plan]], blocks_of: BlocksOf
    ) -> tuple[tuple[Case, ...], Alone | None]:
        estimated.extend(plan for _, plan in several)
        return assessed(job, fixed, several, blocks_of)

    monkeypatch.setattr(choice, "assessed_with_one_device", noted)
    found = find_plan(facts("falcon-7b", "dgx-1v:2", 96, 2048))
    shown = {case.plan for case in (found.chosen, *found.alternatives) if case}
    shown |= {rung.case.plan for rung in found.rungs if rung.case}
    assert len(found.rejected) > 3
    assert len(set(estimated) - shown) == 1
