"""What plans of one device share of their uncertainty, and when two of them may tie."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jobs import TERA, block, job, matmul, plan

from parastrat.assess import assess
from parastrat.estimate import TimeEstimate
from parastrat.hardware import FigureKind, Provenance

ENTRY = Provenance(field="sustained.bf16", kind=FigureKind.ASSUMED, source="a guess")
#: of the stack alone: 10 %
OWN = math.log(1.1)


def estimate(compute: float, waits: float = 0.0, *, shared: float | None = math.log(2)) -> TimeEstimate:
    step, whole = compute + waits, math.hypot(OWN, shared or 0.0)
    parts = dict.fromkeys(("tp_exposed", "cp_exposed", "ep_exposed", "pp_bubble", "pp_exposed"), 0.0)
    return TimeEstimate(
        compute=compute,
        dp_exposed=waits,
        optimizer=0.0,
        step_low=step * math.exp(-whole),
        step_high=step * math.exp(whole),
        assumed_spread=shared,
        **parts,
    )


@pytest.mark.parametrize(("slower", "ties"), [(1.2, True), (1.22, False), (2.0, False)])
def test_what_two_plans_both_assume_does_not_make_them_a_tie(slower: float, *, ties: bool) -> None:
    """Each is known to 10 % but for the rate, which makes both slower or faster: 1.21 lies between."""
    one, other = estimate(1.0), estimate(slower)
    assert one.may_tie(other) is ties
    assert other.may_tie(one) is ties
    # as intervals they overlap
    assert one.step_high > other.step_low


def test_plans_that_rest_on_the_rate_unequally_may_tie() -> None:
    # 1.5 s of compute, or 0.5 s and 0.4 s of waiting: 0.75 against 0.65 s on a device that is twice as fast
    busy, waiting = estimate(1.5), estimate(0.5, 0.4)
    assert busy.step / waiting.step > 1.21
    assert busy.may_tie(waiting)
    assert waiting.may_tie(busy)


def test_without_an_assumption_intervals_are_compared() -> None:
    assert estimate(1.0, shared=None).may_tie(estimate(1.2, shared=None))
    assert not estimate(1.0, shared=None).may_tie(estimate(1.22, shared=None))


def test_the_shared_spread_is_known_where_a_rate_is_assumed() -> None:
    def found(**device: Any) -> TimeEstimate:
        return assess(job(block(matmul(TERA)), device=device), plan()).estimate.time

    assert found().assumed_spread is None
    assumed = found(provenance=(ENTRY,))
    assert assumed.assumed_spread == pytest.approx(math.log(2))
    own = math.log(assumed.step_high / assumed.step)
    assert own == pytest.approx(math.hypot(0.2, math.log(2)))
