"""What micro-batches take in blocks: found once of a search's space, and read of it later on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from search.test_find_plan import facts
from search.test_nearest import answer

from parastrat.assess import plans_table
from parastrat.columns import Columns
from parastrat.cost import block_seconds, step, time_columns
from parastrat.search import Constraints, find_plan, work
from parastrat.search.bounded import searched
from parastrat.search.fastest import able_meshes
from parastrat.search.obeying import obeying
from parastrat.search.of_each import fastest_of_each
from parastrat.search.rows import plan_at
from parastrat.search.survey import survey
from parastrat.tables import facts_columns
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.cost import BlockSeconds

JOB = facts("mixtral-8x7b", "dgx-h100:8", 128, 4096)


def test_plans_take_what_was_found_of_their_space() -> None:
    judged = survey(JOB, Constraints())
    rows = range(0, len(judged.columns.pp), 7)
    columns = Columns(facts_columns(JOB) | plans_table([plan_at(judged.columns, row) for row in rows]))
    known = judged.space.work.found(columns)
    assert known is not None
    expected, found = time_columns(JOB, columns), time_columns(JOB, columns, known)
    for part, seconds in expected.items():
        np.testing.assert_array_equal(found[part], seconds)


@pytest.mark.parametrize(
    "change", [{"micro_batch_size": 3}, {"micro_batch_size": 2**20}, {"tp": 3}, {"cp": 2**18}]
)
def test_plans_that_differ_from_all_of_the_space_are_unknown(change: dict[str, int]) -> None:
    judged = survey(JOB, Constraints())
    columns = Columns(plans_table([judged.plan(0), judged.plan(0)]))
    assert judged.space.work.found(columns) is not None
    second = {
        name: np.where([False, True], value, getattr(columns, name)) for name, value in change.items()
    }
    assert judged.space.work.found(columns.joined(second)) is None


def test_nothing_is_known_before_it_was_found() -> None:
    space = searched(JOB, Constraints(), obeying(JOB, Constraints()))
    assert space.work.found(space.allowed.columns) is None


def test_blocks_are_looked_at_once_for_a_search_and_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def noted(*given: Any) -> Any:
        calls.append(len(given[1].pp))
        return block_seconds(*given)

    monkeypatch.setattr(work, "block_seconds", noted)
    monkeypatch.setattr(step, "block_seconds", noted)
    assert find_plan(JOB).chosen is not None
    assert len(calls) == 1


def test_a_remedy_with_another_optimizer_takes_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Optimizer] = []

    def noted(job: Facts, columns: Columns) -> BlockSeconds:
        found.append(job.workload.optimizer)
        return block_seconds(job, columns)

    monkeypatch.setattr(step, "block_seconds", noted)
    result = answer("nemotron-nano-12b-v2", "dgx-a100-40:1")
    assert Optimizer.ADAMW_8BIT in {fit.case.workload.optimizer for fit in result.nearest_fit}
    assert Optimizer.ADAMW_8BIT not in found


def test_a_search_on_more_nodes_tells_what_blocks_take_on_fewer() -> None:
    allowed = obeying(JOB, Constraints())
    widest = replace(JOB, hardware=replace(JOB.hardware, num_nodes=16))
    own = searched(JOB, Constraints(), allowed).work
    fastest_of_each([able_meshes(widest, Constraints(tp=4))], widest, Constraints(), own)
    rows = own.widths(allowed.meshes)[0].joined({"micro_batch_size": 2})
    found, expected = own.found(rows), block_seconds(JOB, rows)
    assert found is not None
    np.testing.assert_array_equal(found.others.take(found.at, -1), expected.others.take(expected.at, -1))
