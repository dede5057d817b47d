"""The fewest nodes on which a job has a plan: found by whether any fits, and tried once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from search.test_nearest import answer
from search.test_of_each import GIB, JOBS, of_jobs, on_nodes

from parastrat.search import Constraints, room
from parastrat.search.bounded import Searched
from parastrat.search.changes import Changed, more_nodes
from parastrat.search.fastest import able_space, fastest_plan
from parastrat.search.room import TRIED, fewest_nodes

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.search.bounded import Bounded


def plans_on_more(job: tuple[str, str, int], gib: float) -> tuple[Changed, list[Plan | None]]:
    """Return a job, and its fastest plan on each number of nodes that is tried."""
    changed = Changed(changes=(), facts=on_nodes(*job, gib)[0])
    return changed, [fastest_plan(more.facts, Constraints()) for more in islice(more_nodes(changed), TRIED)]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("gib", GIB)
@of_jobs
def test_the_first_number_of_nodes_with_a_plan_is_found_and_its_fastest(
    job: tuple[str, str, int], gib: float, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # all are tried, whether an even share of the states fits or not
    monkeypatch.setattr(room, "may_fit", lambda *_: True)
    changed, plans = plans_on_more(job, gib)
    found = fewest_nodes(changed, Constraints(), first=first)
    assert (found and found.plan) == next((plan for plan in plans[first:] if plan is not None), None)


def test_what_is_tried_fits_at_once_and_later_and_never() -> None:
    several = [plans_on_more(job, gib)[1] for job in JOBS for gib in GIB]
    places = {next((at for at, plan in enumerate(plans) if plan is not None), None) for plans in several}
    assert {0, 1, None} <= places


def test_floors_of_rows_are_found_once_for_whether_any_fits_and_which_is_fastest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    floored, with_quick_floors = list[int](), Searched.with_quick_floors

    def noted(space: Searched, rows: Columns, *least: Any) -> Bounded:
        floored.append(len(rows.mesh))
        return with_quick_floors(space, rows, *least)

    monkeypatch.setattr(Searched, "with_quick_floors", noted)
    (job,) = on_nodes("llama-3.1-70b", "summit:4", 96, 15.0)[:1]
    assert fewest_nodes(Changed(changes=(), facts=job), Constraints()) is not None
    assert len(floored) == 1


def test_no_number_of_nodes_is_tried_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[object, ...]] = []

    def noted(job: Facts, fixed: Constraints) -> Searched | None:
        tried.append((job.hardware.num_nodes, job.workload.optimizer, job.workload.sequence_length))
        return able_space(job, fixed)

    monkeypatch.setattr(room, "able_space", noted)
    (fit,) = answer("megatron-1t", "cpu:128").nearest_fit
    assert fit.changes == ("16,384 nodes instead of 128",)
    assert len(tried) >= 2 * TRIED
    assert len(set(tried)) == len(tried)
