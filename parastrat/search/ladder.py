"""Which rung to stand on: the lowest that is not slower than the fastest by more than the tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.estimate import Verdict
from parastrat.memory.scarce import scarcest
from parastrat.result import Rung, RungStatus
from parastrat.rungs import lowest_near
from parastrat.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Case

#: share of the time of a step below which a difference is told as none
_ALIKE = 0.0005

#: the strategies of each rung, as the report names an empty one
RUNG_STRATEGIES = {
    0: "single",
    1: "ddp",
    2: "fsdp2, hsdp",
    3: "one of tp, cp, ep",
    4: "two or three of tp, cp, ep",
    5: "any with pp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The best of one rung: a plan, or what speaks against every plan."""

    case: Case | None
    #: the plan that came nearest to fitting, where none did
    nearest: Case | None = None
    #: why the rung has no plan at all
    absent: str = ""


def eligible(standings: Mapping[int, Standing]) -> dict[int, Case]:
    """Return the rungs' plans that may be taken: tight ones only where nothing fits with its margin."""
    found = {rung: standing.case for rung, standing in standings.items() if standing.case is not None}
    roomy = {rung: case for rung, case in found.items() if case.estimate.verdict is Verdict.FITS}
    return roomy or found


def choose_rung(standings: Mapping[int, Standing], tolerance: float) -> int | None:
    """Return the rung to stand on; None when nothing fits."""
    steps = {rung: case.estimate.time.step for rung, case in eligible(standings).items()}
    return lowest_near(steps, tolerance) if steps else None


def rung_reports(
    standings: Mapping[int, Standing], chosen: int | None, tolerance: float
) -> tuple[Rung, ...]:
    """Return every rung with the number that took or left it."""
    cases = eligible(standings)
    fastest = min((case.estimate.time.step for case in cases.values()), default=0.0)
    return tuple(
        _report(rung, standings[rung], cases, chosen, (fastest, tolerance)) for rung in sorted(standings)
    )


def _report(
    rung: int,
    standing: Standing,
    cases: Mapping[int, Case],
    chosen: int | None,
    pace: tuple[float, float],
) -> Rung:
    case = standing.case or standing.nearest
    strategy = case.plan.strategy if case else RUNG_STRATEGIES[rung]
    status, reason = _judgement(rung, standing, cases, chosen, pace)
    return Rung(strategy=strategy, rung=rung, status=status, reason=reason, case=case)


def _judgement(
    rung: int,
    standing: Standing,
    cases: Mapping[int, Case],
    chosen: int | None,
    pace: tuple[float, float],
) -> tuple[RungStatus, str]:
    fastest, tolerance = pace
    if standing.case is None:
        if standing.nearest is None:
            return RungStatus.NOT_APPLICABLE, standing.absent
        return RungStatus.DOES_NOT_FIT, _too_much(standing.nearest)
    if rung not in cases:
        memory = standing.case.estimate.memory
        spare = (memory.capacity - memory.total) / GIB
        margin = memory.margin / GIB
        return RungStatus.DOES_NOT_FIT, f"tight: {spare:.1f} GiB spare, the margin of error is {margin:.1f}"
    step = standing.case.estimate.time.step
    if rung == chosen:
        return RungStatus.TAKEN, _taken(step / fastest, tolerance)
    return RungStatus.SLOWER, _left(standing.case, cases[chosen] if chosen is not None else None, tolerance)


def _taken(ratio: float, tolerance: float) -> str:
    """Return how the rung that is taken stands to the fastest, whose step takes one ``ratio``-th."""
    if ratio == 1:
        return "the fastest"
    if ratio < 1 + _ALIKE:
        return "as fast as the fastest, and simpler"
    return f"{100 * (ratio - 1):.1f} % behind the fastest, tolerance {100 * tolerance:.0f} %"


def _left(case: Case, chosen: Case | None, tolerance: float) -> str:
    """Return how a rung that is left stands to the one that is taken, if any is."""
    if chosen is None:
        return "1.00 times the step time"
    ratio = case.estimate.time.step / chosen.estimate.time.step
    if 1 - _ALIKE < ratio < 1:
        return "as fast, and less simple"
    if ratio < 1:
        return f"{100 * (1 - ratio):.1f} % faster, less than the tolerance of {100 * tolerance:.0f} %"
    if case.estimate.time.may_tie(chosen.estimate.time):
        return f"maybe a tie: {ratio:.2f} times"
    return f"{ratio:.2f} times the step time"


def _too_much(case: Case) -> str:
    scarce = scarcest(case)
    needed, capacity = scarce.needed / GIB, scarce.capacity / GIB
    if scarce.of_host:
        return f"a host needs {needed:,.0f} of its {capacity:,.0f} GiB"
    return f"needs {needed:,.1f} of {capacity:,.1f} GiB"
