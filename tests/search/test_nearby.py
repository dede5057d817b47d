"""Global batches close by that more ranks divide."""

from __future__ import annotations

from dataclasses import replace

import pytest
from search.test_find_plan import facts

from parastrat.search import Constraints, find_plan
from parastrat.search.divisible import more_divisible
from parastrat.search.otherwise.nearby import nearby_batch

TOLERANCE = 0.05


@pytest.mark.parametrize(
    ("batch", "devices", "expected"),
    [
        (1538, 128, 1536),
        (1021, 512, 1024),
        # two percent, for six ranks instead of four
        (100, 24, 102),
        # as good as it gets
        (1536, 128, None),
        (96, 24, None),
        (8, 1, None),
        # eight would be a seventh more
        (7, 64, None),
        (1, 8, None),
    ],
)
def test_the_next_multiple_of_most_ranks(batch: int, devices: int, expected: int | None) -> None:
    assert more_divisible(batch, devices) == expected


def test_a_batch_that_divides_is_told_where_it_is_faster() -> None:
    job = facts("gpt-neox-20b", "8x-h200-nvl:16", 1538, 2048)
    chosen = find_plan(job, tolerance=TOLERANCE).chosen
    assert chosen is not None
    other = nearby_batch(job, Constraints(), chosen, TOLERANCE)
    assert other is not None
    assert other.workload == replace(job.workload, global_batch_size=1536)
    expected = find_plan(replace(job, workload=other.workload), tolerance=TOLERANCE).chosen
    assert expected is not None
    assert other.plan == expected.plan
    assert other.estimate.time.step / 1536 < chosen.estimate.time.step / 1538 / (1 + TOLERANCE)


def test_nothing_is_said_of_a_batch_that_gains_nothing() -> None:
    # ranks of one tp group take the same samples, however many
    job, fixed = facts("llama-3.1-8b", "dgx-h100:1", 1001, 4096), Constraints(tp=8, micro_batch_size=1)
    assert more_divisible(1001, 8) == 1000
    assert nearby_batch(job, fixed, find_plan(job, fixed).chosen, TOLERANCE) is None
    whole = facts("gpt-neox-20b", "8x-h200-nvl:16", 1536, 2048)
    assert nearby_batch(whole, Constraints(), None, TOLERANCE) is None


def test_it_is_a_way_to_fit() -> None:
    # 1,021 is prime: no data ranks divide it, and one device has too little memory
    fixed = Constraints(tp=1, pp=1, cp=1)
    result = find_plan(facts("llama-3.1-8b", "dgx-h100:2", 1021, 4096), fixed)
    assert result.chosen is None
    (fit,) = [fit for fit in result.nearest_fit if "global batch" in fit.changes[0]]
    assert fit.changes == ("a global batch of 1,024 instead of 1,021",)
    assert fit.case.plan.global_batch_size == fit.case.workload.global_batch_size == 1024
    assert fit.case.estimate.fits
