"""What would fit where nothing does, with what each change costs in speed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.plan import Offload
from parastrat.report.numbers import duration, percent, rate, size
from parastrat.report.text import Line, Tone, heading, wrapped
from parastrat.report.wording import a_device, device_word, offload_words, plan_name

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.report.text import Paper
    from parastrat.result import NearestFit, SearchResult

#: shares nearer to one than this are not worth a number
_ALIKE = 0.005
#: a gain from here on is told as a multiple
_MULTIPLE = 2


def nearest_lines(result: SearchResult, paper: Paper) -> list[Line]:
    """Return what would make a plan fit, the least cost in speed first; said as well where nothing does."""
    lines = heading("What would fit, by its cost in speed", paper)
    if not result.nearest_fit:
        lines += wrapped(
            "No change that was tried makes it fit: offloading, 8-bit states of the optimizer, shorter "
            "sequences, another batch, more or fewer nodes.",
            paper,
            first="  ",
        )
        for most in result.rejected[:1]:
            lines += wrapped(f"Most plans are left out by {most.code}: {most.fix}.", paper, first="  ")
        return lines
    for fit in result.nearest_fit:
        cost = _cost(fit, result.memory_aside)
        lines += wrapped("; ".join(fit.changes) + (f": {cost}" if cost else ""), paper, first="  - ")
        lines += wrapped(_figures(fit.case), paper, first="    ", tone=Tone.FAINT)
        if fit.case.plan.offload is not Offload.NONE:
            lines += wrapped(f"with {offload_words(fit.case)}", paper, first="    ", tone=Tone.FAINT)
    if result.memory_aside is not None:
        lines += wrapped(f"Costs are against {_unlimited(result.memory_aside)}.", paper, first="  ")
    return lines


def _unlimited(case: Case) -> str:
    step = duration(case.estimate.time.step)
    return f"the fastest plan if memory were no limit: {plan_name(case)}, {step} a step"


def _figures(case: Case) -> str:
    estimate, recompute = case.estimate, case.plan.recompute.value
    needs = f"{size(estimate.memory.total)} {a_device(case.hardware)}"
    return f"{plan_name(case)}, recompute {recompute}: {needs}, {duration(estimate.time.step)} a step"


def _cost(fit: NearestFit, aside: Case | None) -> str:
    """Return what a change costs or gains; empty where nothing is known to hold it against."""
    if fit.speed is None or fit.speed_each is None or aside is None:
        return ""
    units = "samples" if fit.case.workload.sequence_length is None else "tokens"
    if fit.case.plan.mesh.world_size == aside.plan.mesh.world_size:
        return _change(fit.speed, f"the {units} per second")
    times = fit.case.plan.mesh.world_size / aside.plan.mesh.world_size
    devices = device_word(fit.case.hardware, 2)
    pace = f"{rate(fit.speed)} times the {units} per second on {times:g} times the {devices}"
    return f"{pace}, which {_change(fit.speed_each, f'them {a_device(fit.case.hardware)}')}"


def _change(share: float, what: str) -> str:
    if abs(share - 1) < _ALIKE:
        return "costs no speed" if what.startswith("the") else f"costs none of {what}"
    if share < 1:
        return f"costs about {percent(1 - share)} of {what}"
    if share < _MULTIPLE:
        return f"gains about {percent(share - 1)} of {what}"
    return f"makes about {rate(share)} times {what}"
