"""Recommendations against published recipes: none that a source refutes, and every difference argued."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = runpy.run_path(str(Path(__file__).resolve().parents[1] / "benchmarks" / "decisions.py"))
ENTRIES = BENCHMARK["decisions"]()

#: published strategies that are recommended today; a change of the cost model may not lose any
LEAST_AGREEMENT = 23


def test_there_are_at_least_thirty_with_their_sources() -> None:
    assert len(ENTRIES) >= 30
    assert all("https://" in entry["source"] for entry in ENTRIES)
    assert len({entry["id"] for entry in ENTRIES}) == len(ENTRIES)


@pytest.fixture(scope="module")
def made() -> list[Any]:
    return [BENCHMARK["decide"](entry) for entry in ENTRIES]


@pytest.mark.slow
def test_nothing_is_recommended_that_a_source_refutes(made: list[Any]) -> None:
    refuted = [each.entry["id"] for each in made if each.recommended in each.entry["refuted"]]
    assert refuted == []


@pytest.mark.slow
def test_agreement_does_not_fall_and_every_difference_is_argued(made: list[Any]) -> None:
    assert sum(each.agrees for each in made) >= LEAST_AGREEMENT
    for each in made:
        assert each.agrees or each.entry.get("argument"), f"{each.entry['id']}: {each.recommended}"
