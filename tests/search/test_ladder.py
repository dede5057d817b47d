from __future__ import annotations

from dataclasses import replace

import pytest
from builders import case

from parastrat.case import Case
from parastrat.estimate import TimeEstimate
from parastrat.result import RungStatus
from parastrat.search.ladder import Standing, choose_rung, rung_reports
from parastrat.units import GIB


def timed(seconds: float, **changes: object) -> Case:
    made = case(**changes)
    time = TimeEstimate(
        compute=seconds,
        tp_exposed=0.0,
        cp_exposed=0.0,
        ep_exposed=0.0,
        dp_exposed=0.0,
        pp_bubble=0.0,
        pp_exposed=0.0,
        optimizer=0.0,
        step_low=0.8 * seconds,
        step_high=1.2 * seconds,
    )
    return replace(made, estimate=replace(made.estimate, time=time))


def tight(seconds: float) -> Case:
    made = timed(seconds)
    memory = replace(made.estimate.memory, parameters=79 * GIB, capacity=80 * GIB, margin=4 * GIB)
    return replace(made, estimate=replace(made.estimate, memory=memory))


def standings(**seconds: float) -> dict[int, Standing]:
    return {int(rung.removeprefix("r")): Standing(case=timed(step)) for rung, step in seconds.items()}


@pytest.mark.parametrize(
    ("steps", "tolerance", "rung"),
    [
        ({"r1": 10.0, "r2": 9.0}, 0.05, 2),
        ({"r1": 10.0, "r2": 9.6}, 0.05, 1),
        ({"r1": 10.0, "r2": 9.6}, 0.0, 2),
        ({"r2": 10.0, "r3": 10.0, "r5": 9.99}, 0.05, 2),
        ({"r0": 9.8, "r1": 9.5}, 0.05, 1),
        ({"r0": 9.0, "r1": 9.5}, 0.05, 0),
    ],
    ids=[
        "the lower is too slow",
        "the lower is within the tolerance",
        "no tolerance takes the fastest",
        "the lowest of equals",
        "one device only if it is the fastest",
        "one device is the fastest",
    ],
)
def test_the_lowest_rung_within_the_tolerance(steps: dict[str, float], tolerance: float, rung: int) -> None:
    assert choose_rung(standings(**steps), tolerance) == rung


def test_tight_plans_are_passed_over_unless_nothing_else_fits() -> None:
    mixed = {1: Standing(case=tight(1.0)), 2: Standing(case=timed(5.0))}
    assert choose_rung(mixed, 0.05) == 2
    assert choose_rung({1: Standing(case=tight(1.0))}, 0.05) == 1
    report = rung_reports(mixed, 2, 0.05)[0]
    assert report.status is RungStatus.DOES_NOT_FIT
    assert report.reason.startswith("tight: ")


def test_nothing_fits() -> None:
    nothing = {
        1: Standing(case=None, nearest=timed(1.0)),
        3: Standing(case=None, absent="8 heads do not divide"),
    }
    assert choose_rung(nothing, 0.05) is None
    first, second = rung_reports(nothing, None, 0.05)
    assert first.status is RungStatus.DOES_NOT_FIT
    assert "GiB" in first.reason
    assert (second.status, second.reason) == (RungStatus.NOT_APPLICABLE, "8 heads do not divide")
    assert second.case is None


def test_steps_whose_intervals_overlap_may_be_a_tie() -> None:
    # 10 is known to 12 at most, 15 to 12 at least
    near, far = standings(r1=15.0, r2=10.0), standings(r1=15.1, r2=10.0)
    assert rung_reports(near, 2, 0.05)[0].reason == "maybe a tie: 1.50 times"
    assert rung_reports(far, 2, 0.05)[0].reason == "1.51 times the step time"


def test_rungs_of_one_pace_are_said_to_be_as_fast() -> None:
    reports = rung_reports(standings(r1=10.004, r2=10.0), 1, 0.05)
    assert [report.reason for report in reports] == [
        "as fast as the fastest, and simpler",
        "as fast, and less simple",
    ]
    assert "0.1 % behind" in rung_reports(standings(r1=10.006, r2=10.0), 1, 0.05)[0].reason


def test_every_rung_says_why_it_was_taken_or_left() -> None:
    reports = rung_reports(standings(r1=12.0, r2=10.2, r3=10.0), 2, 0.05)
    assert [(report.status, report.reason) for report in reports] == [
        (RungStatus.SLOWER, "maybe a tie: 1.18 times"),
        (RungStatus.TAKEN, "2.0 % behind the fastest, tolerance 5 %"),
        (RungStatus.SLOWER, "2.0 % faster, less than the tolerance of 5 %"),
    ]
