"""What else the reader should know: backend, findings, and what would change the answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING

from parastrat.finding import Severity
from parastrat.memory.scarce import excess
from parastrat.report.commands import estimate_command
from parastrat.report.numbers import duration, percent
from parastrat.report.otherwise import answers_otherwise
from parastrat.report.text import Line, Span, Tone, heading, labelled, line, wrapped
from parastrat.report.wording import plan_name
from parastrat.result import RungStatus
from parastrat.rules.backend import decide_backend
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.estimate import TimeEstimate
    from parastrat.finding import Finding
    from parastrat.report.commands import Context, Step
    from parastrat.report.text import Paper
    from parastrat.result import SearchResult

_SEVERITY_TONES = {
    Severity.ERROR: Tone.BAD,
    Severity.WARNING: Tone.CAUTION,
    Severity.INFO: Tone.PLAIN,
}
_MOST_ALTERNATIVES = 4
#: a share below would be written as 0.0 %
_ALIKE = 0.0005


def backend_lines(case: Case, paper: Paper) -> list[Line]:
    """Return the communication backend with its reason, and the environment of every rank."""
    decision = decide_backend(case.hardware)
    launch = case.launch
    lines = heading("Backend and launch", paper)
    name = "none, one process" if decision.backend is None else decision.backend.value
    if not launch.backend:
        name = "none, one process"
    unsure = "" if decision.certain else " (some facts are unknown: run parastrat probe there)"
    lines += labelled("backend", name + unsure, paper)
    if launch.backend:
        lines += labelled("because", decision.reason, paper)
        if decision.fallback:
            lines += labelled("in trouble", decision.fallback, paper)
        for option in decision.options:
            lines += labelled("or", option, paper)
    nodes = counted(launch.nodes, "node")
    lines += labelled("processes", f"{nodes} x {launch.ranks_per_node}", paper)
    for name, value in launch.env.items():
        lines += labelled("env", f"{name}={value}", paper)
    return lines


def finding_lines(findings: Sequence[Finding], paper: Paper) -> list[Line]:
    """Return findings, errors first, each with what to do."""
    if not findings:
        return []
    lines = heading("Findings (parastrat explain CODE says more)", paper)
    order = list(Severity)
    for finding in sorted(findings, key=lambda finding: order.index(finding.severity)):
        tone = _SEVERITY_TONES[finding.severity]
        label = f"  {finding.code} {finding.severity.value}: "
        rows = wrapped(finding.message, paper, first=label, rest="      ")
        lines.append((Span(label, tone), Span(rows[0][0].text[len(label) :])))
        lines += rows[1:]
        lines += wrapped(f"fix: {finding.fix}", paper, first="      ")
    return lines


def caveat_lines(caveats: Sequence[str], paper: Paper) -> list[Line]:
    """Return what the estimate leaves out."""
    if not caveats:
        return []
    return heading("Left out of the estimate", paper) + [
        row for caveat in caveats for row in wrapped(caveat, paper, first="  - ")
    ]


def change_lines(result: SearchResult, context: Context, paper: Paper) -> list[Line]:
    """Return what would change the answer: the fastest rung, a tie, close alternatives."""
    chosen = result.chosen
    if chosen is None:
        return []
    doubts = answers_otherwise(chosen, result)
    others = [*_faster(result, chosen), *_simpler(result, chosen), *_others(result, chosen)]
    ties = _tie(result)
    if not (doubts or others or ties):
        return []
    lines = heading("What would change the answer", paper)
    lines += [
        row for sentence in (*doubts, *others, *ties) for row in wrapped(sentence, paper, first="  - ")
    ]
    if ties and result.fastest is not None:
        lines += wrapped_command(estimate_command(context, result.fastest.plan, "other.toml"), paper)
    return lines


def next_lines(steps: Sequence[Step], paper: Paper) -> list[Line]:
    """Return the next commands; one too long for a line is broken as a shell reads it."""
    lines = heading("Next", paper) if steps else []
    for step in steps:
        lines += wrapped(step.purpose, paper, first="  ", tone=Tone.FAINT)
        lines += wrapped_command(step.command, paper)
    return lines


def wrapped_command(command: str, paper: Paper) -> list[Line]:
    """Return a command that can be pasted: its lines end with a backslash, words stay whole."""
    rows, row = [], "   "
    for part in re.split(r" (?=-)", command):
        # a flag stays with its value
        if len(row) + len(part) + 3 > paper.measure and row.strip():
            rows.append(row)
            row = "     "
        row += f" {part}"
    return [line(f"{above} \\", Tone.STRONG) for above in rows] + [line(row, Tone.STRONG)]


def _faster(result: SearchResult, chosen: Case) -> list[str]:
    fastest = result.fastest
    if fastest is not None and fastest.estimate.time.step < chosen.estimate.time.step:
        gain = 1 - fastest.estimate.time.step / chosen.estimate.time.step
        if gain < _ALIKE:
            return [f"{plan_name(fastest)} is as fast, on a higher rung; the simpler plan is taken"]
        pace = f"would take {duration(fastest.estimate.time.step)}, {percent(gain)} less, on a higher rung"
        policy = f"within {percent(result.tolerance)} the simpler plan is taken"
        return [f"{plan_name(fastest)} {pace}; {policy}, with --tolerance 0 the fastest"]
    runners = [
        rung.case
        for rung in result.rungs
        if rung.case is not None and excess(rung.case) <= 1 and rung.case.plan != chosen.plan
    ]
    if not runners:
        return []
    second = min(runners, key=lambda case: case.estimate.time.step)
    loss = second.estimate.time.step / chosen.estimate.time.step - 1
    if loss < 0:
        pace = f"would take {duration(second.estimate.time.step)}, {percent(-loss)} less"
        return [f"{plan_name(second)} {pace}, but is tight: what is spare is less than its margin of error"]
    more = "as fast" if loss < _ALIKE else f"{percent(loss)} more"
    pace = f"{duration(second.estimate.time.step)}, {more}"
    return [f"the next best rung is {plan_name(second)}: {pace}"]


def _simpler(result: SearchResult, chosen: Case) -> list[str]:
    """Return which lower rung may be as fast, though estimated beyond the tolerance, and what takes it.

    One device of several is taken where it is the fastest alone, whatever the tolerance.
    """
    ties = [
        rung.case
        for rung in result.rungs
        if rung.status is RungStatus.SLOWER
        and rung.case is not None
        and 0 < rung.rung < chosen.plan.rung
        and rung.case.estimate.time.may_tie(chosen.estimate.time)
    ]
    if not ties:
        return []
    other = min(ties, key=lambda case: case.estimate.time.step)
    behind = other.estimate.time.step / (result.fastest or chosen).estimate.time.step - 1
    pace = (
        f"{duration(other.estimate.time.step)}, is simpler and may be as fast: the 80 % intervals overlap"
    )
    policy = f"a lower rung is taken within {percent(result.tolerance)} of the fastest"
    return [
        f"{plan_name(other)}, {pace}; {policy}, this one with --tolerance {ceil(100 * behind) / 100:.2f}"
    ]


def _tie(result: SearchResult) -> list[str]:
    if not result.may_be_a_tie or result.fastest is None or result.chosen is None:
        return []
    chosen, fastest = result.chosen.estimate.time.step, result.fastest.estimate.time.step
    if 1 - fastest / chosen < _ALIKE:
        # said to be as fast already
        return []
    intervals = " and ".join(_interval(case.estimate.time) for case in (result.chosen, result.fastest))
    sentence = (
        f"may be a tie: the 80 % intervals of the two overlap ({intervals}); settle it by measuring: write "
        "the other plan to a file too, and time twenty steps of each"
    )
    return [sentence]


def _interval(time: TimeEstimate) -> str:
    return f"{duration(time.step_low)} to {duration(time.step_high)}"


def _others(result: SearchResult, chosen: Case) -> list[str]:
    known = {chosen.plan, result.fastest.plan if result.fastest else None}
    others = [case for case in result.alternatives if case.plan not in known]
    if not others:
        return []
    named = [
        f"{case.plan.strategy} {duration(case.estimate.time.step)}" for case in others[:_MOST_ALTERNATIVES]
    ]
    return [f"other strategies that fit: {', '.join(named)}"]
