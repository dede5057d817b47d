"""Predictions beside measurements."""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import Any

import pytest
from measured.rows import run

from parastrat.assess import assess
from parastrat.comparison import Compared, Quantity, Ranking, Rival, ranking_of, summary_of
from parastrat.estimate import Verdict
from parastrat.measured import MeasuredRow, Table, compared, runs_of
from parastrat.measured.jobs import job_of
from parastrat.units import GIB

COLUMNS = ("id", "model", "gpus", "step_time_s", "tokens_per_s_per_gpu", "samples_per_s")


def one(row: MeasuredRow, quantity: Quantity = Quantity.STEP_TIME) -> Compared:
    (found,) = [
        each for each in compared(Table(rows=(row,), columns=COLUMNS)).rows if each.quantity is quantity
    ]
    return found


@pytest.mark.parametrize(
    "throughput",
    [{"step_time_s": 4.0}, {"tokens_per_s_per_gpu": 8192.0}, {"samples_per_s": 8.0}],
)
def test_throughput_becomes_step_time(throughput: dict[str, Any]) -> None:
    # 32 sequences of 8,192 tokens on 8 devices
    found = one(run(**throughput))
    assert found.measured == pytest.approx(4.0)
    assert found.error == pytest.approx(found.predicted / 4.0 - 1)


def test_predictions_are_the_estimates() -> None:
    row = run(step_time_s=4.0, peak_mem_gib=60.0, mem_metric="nvidia-smi")
    job = job_of(row)
    estimate = assess(job.facts, job.plan).estimate
    assert one(row).predicted == estimate.time.step
    assert (one(row).low, one(row).high) == (estimate.time.step_low, estimate.time.step_high)
    memory = one(row, Quantity.PEAK_MEMORY)
    assert (memory.predicted, memory.measured) == (estimate.memory.total, 60.0 * GIB)
    assert memory.verdict is estimate.verdict


def test_each_metric_counts_what_it_counts() -> None:
    metrics = ("nvidia-smi, max rank", "torch max_memory_reserved", "torch max_memory_allocated")
    whole, reserved, allocated = (
        one(run(peak_mem_gib=1.0, mem_metric=metric), Quantity.PEAK_MEMORY).predicted for metric in metrics
    )
    job = job_of(run())
    overhead = assess(job.facts, job.plan).estimate.memory.overhead
    assert whole - reserved == job.facts.stack.context_bytes
    assert whole - allocated == overhead
    assert allocated < reserved < whole
    unknown = compared(Table(rows=(run(mem_metric="felt", peak_mem_gib=1.0),), columns=COLUMNS))
    assert [each.reason for each in unknown.skipped] == [
        "memory metric 'felt' is none of reserved, allocated, nvidia-smi"
    ]
    assert unknown.rows == ()


def test_an_unknown_metric_of_memory_leaves_the_time() -> None:
    row = run(step_time_s=4.0, mem_metric="felt", peak_mem_gib=1.0)
    found = compared(Table(rows=(row,), columns=COLUMNS))
    assert [(each.quantity, each.measured) for each in found.rows] == [(Quantity.STEP_TIME, 4.0)]
    assert [each.reason for each in found.skipped] == [
        "peak memory alone: memory metric 'felt' is none of reserved, allocated, nvidia-smi"
    ]


def test_what_was_measured_does_not_change_what_is_predicted() -> None:
    told = run(step_time_s=4.0, peak_mem_gib=60.0, mem_metric="nvidia-smi", status="ok")
    blank = replace(told, step_time_s=None, peak_mem_gib=None)
    for quantity in Quantity:
        assert one(blank, quantity).measured is None
        assert one(blank, quantity).error is None
        assert one(blank, quantity).predicted == one(told, quantity).predicted


def test_a_run_out_of_memory_is_no_measurement() -> None:
    found = one(run(status="OOM", peak_mem_gib=80.0, mem_metric="nvidia-smi"), Quantity.PEAK_MEMORY)
    assert (found.measured, found.out_of_memory) == (None, True)


def test_every_run_is_compared_or_skipped() -> None:
    rows = (run(step_time_s=1.0), run(id="here-2", stack=None), run(id="here-3", hardware="abacus"))
    found = compared(Table(rows=rows, columns=COLUMNS))
    assert [row.id for row in found.rows] == ["here-1"]
    assert [skipped.id for skipped in found.skipped] == ["here-2", "here-3"]
    nothing = compared(Table(rows=rows[:1], columns=("id", "model", "gpus", "peak_mem_gib")))
    assert [skipped.reason for skipped in nothing.skipped] == ["what was measured is not stated"]


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ({"notes": "power-limited B200; memory in GB"}, False),
        ({"notes": "power capped"}, False),
        ({"notes": "a power limit of 500 W"}, True),
        ({"notes": "compiled"}, True),
    ],
)
def test_steps_under_an_unknown_power_limit_are_not_predicted(said: dict[str, str], *, known: bool) -> None:
    limited = run(step_time_s=1.0, peak_mem_gib=60.0, mem_metric="nvidia-smi", **said)
    found = compared(Table(rows=(limited,), columns=("id", "model", "gpus", "peak_mem_gib")))
    # memory hangs on no rate
    assert [row.quantity for row in found.rows] == [Quantity.PEAK_MEMORY]
    timed = compared(Table(rows=(replace(limited, mem_metric=None),), columns=COLUMNS))
    assert [row.quantity for row in timed.rows] == ([Quantity.STEP_TIME] if known else [])
    reason = "the device is power limited, and its source does not say to what"
    assert [each.reason for each in timed.skipped] == ([] if known else [reason])
    assert len(runs_of([limited])) == known


def test_the_spread_of_equal_runs_is_noise() -> None:
    rows = (
        run(step_time_s=1.0),
        run(id="here-2", step_time_s=1.1, line=7, source="another", notes="said"),
        run(id="here-3", step_time_s=5.0, micro_batch=1),
    )
    noise = compared(Table(rows=rows, columns=COLUMNS)).noise
    assert noise[Quantity.STEP_TIME] == pytest.approx((0.1,))
    assert noise[Quantity.PEAK_MEMORY] == ()


def test_runs_are_ranked_where_parallelism_alone_differs() -> None:
    rows = (
        run(step_time_s=3.0, tp=1),
        run(id="here-2", step_time_s=2.0, tp=2, line=2),
        # measured twice: 2.5 in the mean
        run(id="here-3", step_time_s=2.25, tp=4, line=3),
        run(id="here-4", step_time_s=2.75, tp=4, line=4),
        # another batch is another job, with two runs alone
        run(id="here-5", step_time_s=1.0, tp=1, global_batch=64, line=5),
        run(id="here-6", step_time_s=2.0, tp=2, global_batch=64, line=6),
    )
    found = compared(Table(rows=rows, columns=COLUMNS))
    assert found.ranking is not None
    assert found.ranking.groups == 1
    predicted = {row.id: row.predicted for row in found.rows}
    measured = {"here-1": 3.0, "here-2": 2.0, "here-3": 2.5}
    first = min(measured, key=lambda name: predicted[name])
    assert found.ranking.regret == pytest.approx(measured[first] / 2.0 - 1)


def rivals(*pairs: tuple[float, float], rungs: tuple[int, ...] = ()) -> list[Rival]:
    return [
        Rival(predicted=predicted, measured=measured, rung=rung)
        for (predicted, measured), rung in zip(pairs, rungs or (2,) * len(pairs), strict=True)
    ]


def test_ranking_by_hand() -> None:
    # of six pairs five are in order; the first of the predicted is the second of the measured
    swapped = rivals((1.0, 2.2), (2.0, 2.0), (3.0, 3.0), (4.0, 4.0))
    # wholly the wrong way round, and the fastest is the last of four
    reverse = rivals((1.0, 8.0), (2.0, 6.0), (3.0, 5.0), (4.0, 4.0))
    found = ranking_of([swapped, reverse, rivals((1.0, 9.0), (2.0, 1.0))])
    assert found == Ranking(
        groups=2,
        tau=pytest.approx((4 / 6 - 1) / 2),
        regret=pytest.approx((0.1 + 1.0) / 2),
        regret_of_three=pytest.approx((0 + 0.25) / 2),
        regret_of_ladder=pytest.approx((0.1 + 1.0) / 2),
    )
    # equal predictions tell no order
    assert ranking_of([rivals((1.0, 1.0), (1.0, 2.0), (1.0, 3.0))]).tau == 0  # type: ignore[union-attr]
    assert ranking_of([]) is None


def test_the_ladder_takes_the_best_of_the_lowest_rung_that_is_near() -> None:
    pairs = (1.0, 1.0), (1.04, 1.2), (1.03, 1.1), (1.06, 1.5)
    found = ranking_of([rivals(*pairs, rungs=(5, 3, 3, 2))])
    # the lowest is 6 % slower than the fastest; of the next one the faster is taken
    assert found is not None
    assert found.regret_of_ladder == pytest.approx(0.1)
    # one device of several only where none is faster
    alone = ranking_of([rivals(*pairs, rungs=(5, 0, 3, 2))])
    assert alone is not None
    assert alone.regret_of_ladder == pytest.approx(0.1)


def test_summaries_by_hand() -> None:
    def off(predicted: float) -> Compared:
        return Compared(
            id="a-1",
            stack="torch",
            quantity=Quantity.STEP_TIME,
            measured=1.0,
            predicted=predicted,
            low=0.85 * predicted,
            high=predicted / 0.85,
            verdict=Verdict.FITS,
        )

    # errors -0.5, -0.1, 0.1, 0.3: sizes 0.1, 0.1, 0.3, 0.5
    found = summary_of([off(1.1), off(0.5), off(0.9), off(1.3)])
    assert found.n == 4
    assert found.mape == pytest.approx(0.25)
    assert found.median == pytest.approx(0.2)
    assert found.p90 == pytest.approx(0.5)
    assert found.bias == pytest.approx(-0.05)
    assert found.median_log == pytest.approx((-log(0.9) + log(1.3)) / 2)
    assert found.inside == pytest.approx(0.5)
    # of ten, the ninth
    ten = summary_of([off(1 + place / 10) for place in range(10)])
    assert ten.p90 == pytest.approx(0.8)
    # an error of -1, as numbers round
    assert summary_of([off(1e-20)]).median_log == pytest.approx(20 * log(10))
