"""The report of ``estimate``, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.report.advice import backend_lines, caveat_lines, finding_lines, next_lines
from parastrat.report.breakdown import memory_lines, plan_lines, time_lines
from parastrat.report.commands import Step, estimate_command, next_steps, recommend_command
from parastrat.report.headline import VERDICT_TONES, estimated_sentence, headline_lines
from parastrat.report.host_memory import host_memory_lines
from parastrat.report.phases import phase_lines
from parastrat.report.recommendation import count_errors
from parastrat.report.room import room_lines
from parastrat.report.text import Tone, rendered, wrapped
from parastrat.report.timeline import timeline_lines

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.finding import Finding
    from parastrat.memory.rooms import Rooms
    from parastrat.report.commands import Context
    from parastrat.report.text import Line, Paper
    from parastrat.timeline import Timeline


def estimate_text(
    case: Case,
    findings: Sequence[Finding],
    context: Context,
    paper: Paper,
    rooms: Rooms | None = None,
    timeline: Timeline | None = None,
) -> str:
    """Return the report of ``estimate``, with memory phase by phase, that of hosts and a step as it passes.

    Each where it is given.
    """
    lines = _estimate_head(case, findings, context, paper)
    lines += finding_lines(findings, paper)
    lines += plan_lines(case, paper) + memory_lines(case, paper)
    lines += [] if rooms is None else _rooms_lines(case, rooms, paper)
    lines += time_lines(case, paper)
    if timeline is not None:
        lines += timeline_lines(timeline, case.plan.gradient_accumulation_steps, paper)
    lines += backend_lines(case, paper)
    lines += caveat_lines(case.model.caveats, paper)
    return rendered(lines + next_lines(_after_estimate(case, findings, context), paper), paper)


def rooms_text(case: Case, findings: Sequence[Finding], rooms: Rooms, paper: Paper) -> str:
    """Return where a plan takes memory: the report of ``explain`` for a plan file."""
    errors = count_errors(findings)
    tone = Tone.BAD if errors else VERDICT_TONES[case.estimate.verdict]
    lines = wrapped(estimated_sentence(case, errors), paper, tone=tone)
    lines += memory_lines(case, paper) + _rooms_lines(case, rooms, paper)
    return rendered(lines, paper)


def _rooms_lines(case: Case, rooms: Rooms, paper: Paper) -> list[Line]:
    lines = phase_lines(case, rooms.ranks, paper) + room_lines(case, rooms.ranks, paper)
    return lines + ([] if rooms.host is None else host_memory_lines(rooms.host, paper))


def _estimate_head(case: Case, findings: Sequence[Finding], context: Context, paper: Paper) -> list[Line]:
    errors = count_errors(findings)
    tone = Tone.BAD if errors else VERDICT_TONES[case.estimate.verdict]
    return headline_lines(estimated_sentence(case, errors), tone, case.facts, context, paper)


def _after_estimate(case: Case, findings: Sequence[Finding], context: Context) -> list[Step]:
    if count_errors(findings) or not case.estimate.fits:
        return [Step(purpose="find a plan that works", command=recommend_command(context))]
    # what is fixed here is this very plan
    return next_steps(case, replace(context, fixed=()), estimate_command(context, case.plan, "plan.toml"))
