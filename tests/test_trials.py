"""Which of several plans that ran is kept."""

from __future__ import annotations

from typing import Any

import pytest

from parastrat.trials import Loop, Timed, Trial, kept_of


def trial(*seconds: float, failure: str | None = None) -> Trial:
    timed = Timed(seconds=seconds, samples=(8, 8), loop=Loop.PLAIN) if seconds else None
    case: Any = object()
    return Trial(case=case, timed=timed, failure=failure)


def quiet(seconds: float) -> Trial:
    return trial(*[seconds] * 8)


def test_the_fastest_is_kept() -> None:
    trials = [quiet(1.0), quiet(0.9), quiet(0.8)]
    assert kept_of(trials) is trials[2]


def test_the_first_is_kept_where_the_fastest_is_as_fast() -> None:
    trials = [quiet(1.0), quiet(0.985)]
    assert kept_of(trials) is trials[0]


@pytest.mark.parametrize("noisy", [0, 1])
def test_steps_that_vary_tell_nothing_apart(noisy: int) -> None:
    """Medians are 10 % apart; of one plan the middle half of the steps are 40 % apart."""
    wide = [0.8, 0.8, 1.0, 1.0, 1.2, 1.2]
    medians = [1.1, 1.0]
    trials = [quiet(median) for median in medians]
    assert kept_of(trials) is trials[1]
    trials[noisy] = trial(*(medians[noisy] * each for each in wide))
    assert kept_of(trials) is trials[0]


def test_what_failed_is_never_kept() -> None:
    failed = trial(0.1, failure="a step trains 4 samples, the plan's global batch is 8")
    trials = [trial(failure="ran out of memory"), failed, quiet(2.0), quiet(3.0)]
    assert kept_of(trials) is trials[2]
    assert kept_of([failed, trial()]) is None


def test_two_runs_are_one_measurement() -> None:
    first = Timed(seconds=(1.0, 2.0), samples=(8, 8), loop=Loop.PLAIN, peak_bytes=5)
    second = Timed(seconds=(4.0,), samples=(4, 8), loop=Loop.PLAIN, peak_bytes=7)
    both = first.with_more(second)
    assert (both.seconds, both.samples, both.peak_bytes) == ((1.0, 2.0, 4.0), (4, 8), 7)
    assert both.median == 2.0
