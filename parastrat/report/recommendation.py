"""The report of ``recommend``, top to bottom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parastrat.finding import Severity
from parastrat.report.advice import (
    backend_lines,
    caveat_lines,
    change_lines,
    finding_lines,
    next_lines,
)
from parastrat.report.breakdown import memory_lines, plan_lines, time_lines
from parastrat.report.commands import next_steps, recommend_command, steps_to_fit
from parastrat.report.front import front_lines
from parastrat.report.headline import (
    forced_sentence,
    headline_lines,
    recommended_sentence,
)
from parastrat.report.ladder_table import ladder_lines, rejected_lines
from parastrat.report.nearest_fit import nearest_lines
from parastrat.report.text import Tone, rendered, wrapped

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.finding import Finding
    from parastrat.report.commands import Context
    from parastrat.report.text import Line, Paper
    from parastrat.result import SearchResult


#: the rule that a step must fit
_FIT = "PS101"


def recommendation_text(result: SearchResult, context: Context, paper: Paper) -> str:
    """Return the report of ``recommend``."""
    chosen, facts = result.chosen, result.facts
    tone = Tone.BAD if chosen is None else Tone.STRONG
    lines = headline_lines(recommended_sentence(result, context.fixed), tone, facts, context, paper)
    lines += wrapped(forced_sentence(result), paper, tone=Tone.CAUTION)
    if chosen is None:
        lines += nearest_lines(result, paper)
        lines += ladder_lines(result.rungs, paper, result.forced_strategy)
        lines += rejected_lines(result, paper)
        lines += caveat_lines(facts.model.caveats, paper)
        return rendered(lines + next_lines(steps_to_fit(result, context), paper), paper)
    lines += ladder_lines(result.rungs, paper, result.forced_strategy)
    lines += _plan_sections(chosen, paper)
    lines += front_lines(result.front, paper)
    lines += finding_lines(result.findings, paper)
    lines += change_lines(result, context, paper)
    lines += rejected_lines(result, paper)
    lines += caveat_lines(facts.model.caveats, paper)
    command = recommend_command(context, context.fixed, "-o", "plan.toml")
    return rendered(lines + next_lines(next_steps(chosen, context, command, result.applied), paper), paper)


def count_errors(findings: Sequence[Finding]) -> int:
    """Return how many rules the plan breaks; that it does not fit is told apart."""
    return sum(finding.severity is Severity.ERROR and finding.code != _FIT for finding in findings)


def _plan_sections(case: Case, paper: Paper) -> list[Line]:
    return [
        *plan_lines(case, paper),
        *memory_lines(case, paper),
        *time_lines(case, paper),
        *backend_lines(case, paper),
    ]
