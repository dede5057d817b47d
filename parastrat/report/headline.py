"""The verdict in one sentence, and what was assumed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.estimate import Verdict
from parastrat.memory.scarce import excess, scarcest
from parastrat.report.numbers import duration, gib, percent
from parastrat.report.text import Line, Tone, wrapped
from parastrat.report.wording import a_device, device_word, plan_name, strategy_name, workload_terms
from parastrat.rungs import NEAR
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case, Facts
    from parastrat.report.commands import Context
    from parastrat.report.text import Paper
    from parastrat.result import SearchResult

VERDICT_TONES = {
    Verdict.FITS: Tone.GOOD,
    Verdict.TIGHT: Tone.CAUTION,
    Verdict.DOES_NOT_FIT: Tone.BAD,
}
VERDICT_WORDS = {
    Verdict.FITS: "fits",
    Verdict.TIGHT: "tight",
    Verdict.DOES_NOT_FIT: "does not fit",
}


def recommended_sentence(result: SearchResult, fixed: Sequence[str] = ()) -> str:
    """Return the answer of ``recommend`` in one sentence, of plans that flags fix a part of."""
    case, facts = result.chosen, result.facts
    if case is None:
        return _no_sentence(result, fixed)
    idle = facts.hardware.world_size - case.plan.mesh.world_size
    left = f", leave {idle} idle" if idle else ""
    tight = ", within the margin of error" if case.estimate.verdict is Verdict.TIGHT else ""
    return f"Train {facts.model.name} {_with_strategy(case)}{left}{tight}: {key_figures(case)}."


def forced_sentence(result: SearchResult) -> str:
    """Return what the advice would have been without ``--strategy``; empty where it is the same."""
    chosen, free = result.chosen, result.unforced
    if result.forced_strategy is None or free is None:
        return ""
    advice = f"Without --strategy {result.forced_strategy} the advice is {plan_name(free)}"
    if chosen is None:
        return f"{advice}: {key_figures(free)}."
    if free.plan == chosen.plan:
        return ""
    ratio = chosen.estimate.time.step / free.estimate.time.step
    if ratio >= NEAR:
        pace = f"{result.forced_strategy} takes {ratio:.2f} times as long"
    elif chosen.plan.rung > free.plan.rung:
        pace = f"{result.forced_strategy} is not slower, but stands on a higher rung"
    elif chosen.estimate.verdict is Verdict.TIGHT and free.estimate.verdict is not Verdict.TIGHT:
        pace = f"{result.forced_strategy} is not slower, but does not fit with its margin"
    else:
        pace = f"{result.forced_strategy} is as fast, and of plans within 0.5 % the simplest is taken"
    return f"{advice}: {key_figures(free)}; {pace}."


def estimated_sentence(case: Case, errors: int) -> str:
    """Return the answer of ``estimate`` in one sentence."""
    subject = f"{case.model.name} {_with_strategy(case)}"
    breaks = f"breaks {counted(errors, 'rule')}"
    if not case.estimate.fits:
        return f"{subject} does not fit{' and ' + breaks if errors else ''}: {key_figures(case)}."
    if errors:
        return f"{subject} cannot run, it {breaks}: {key_figures(case)}."
    state = "fits, within the margin of error" if case.estimate.verdict is Verdict.TIGHT else "fits"
    return f"{subject} {state}: {key_figures(case)}."


def key_figures(case: Case) -> str:
    """Return memory, time and use of the hardware, such as ``61.2 of 79.1 GiB a GPU, 12.3 s a step``."""
    estimate = case.estimate
    figures = [_of_memory(case), f"{duration(estimate.time.step)} a step"]
    if estimate.mfu is not None:
        figures.append(f"{percent(estimate.mfu)} MFU")
    return ", ".join(figures)


def _of_memory(case: Case) -> str:
    memory = case.estimate.memory
    return f"{gib(memory.total)} of {gib(memory.capacity)} GiB {a_device(case.hardware)}"


def headline_lines(sentence: str, tone: Tone, facts: Facts, context: Context, paper: Paper) -> list[Line]:
    """Return the sentence, then what was assumed and what was given."""
    lines = wrapped(sentence, paper, tone=tone)
    terms = workload_terms(facts.workload, facts.model)
    assumed = [term for name, term in terms.items() if name in facts.workload.assumed]
    given = [term for name, term in terms.items() if name not in facts.workload.assumed]
    if assumed:
        source = f" ({context.defaults_source})" if context.defaults_source else ""
        lines += wrapped(f"assumed: {', '.join(assumed)}{source}", paper)
    if given:
        lines += wrapped(f"given: {', '.join(given)}", paper)
    if context.fixed:
        lines += wrapped(f"fixed: {' '.join(context.fixed)}", paper)
    return lines


def _with_strategy(case: Case) -> str:
    number = case.plan.mesh.world_size
    word = device_word(case.hardware, number)
    if number == 1:
        return f"on one {word}"
    return f"with {strategy_name(case.plan.strategy)} over {number:,} {word}"


def _no_sentence(result: SearchResult, fixed: Sequence[str]) -> str:
    hardware = result.facts.hardware
    number = hardware.world_size
    place = f"{number:,} {device_word(hardware, number)}"
    near = [rung.case for rung in result.rungs if rung.case is not None]
    kind = f" {result.forced_strategy}" if result.forced_strategy else ""
    others = " ".join(_without_strategy(fixed))
    subject = f"No{kind} plan{' with ' + others if others else ''} for {result.facts.model.name}"
    if not near:
        return f"{subject} can run on {place}."
    if all(case.plan.mesh.world_size < number for case in near):
        # what fails for want of memory is one device; all together other rules leave out
        return f"{subject} can run on {place}, and one alone needs {_of_memory(near[0])}."
    nearest = min(near, key=excess)
    needed, scarce = _of_memory(nearest), scarcest(nearest)
    if scarce.of_host:
        needed = f"{gib(scarce.needed)} of {gib(scarce.capacity)} GiB a host, beside {needed}"
    return f"{subject} fits on {place}: the nearest needs {needed}."


def _without_strategy(fixed: Sequence[str]) -> list[str]:
    """Return flags without ``--strategy`` and its value."""
    words = list(fixed)
    if "--strategy" in words:
        place = words.index("--strategy")
        del words[place : place + 2]
    return words
