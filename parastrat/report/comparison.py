"""The report of ``why-not``: a plan that was asked for beside the recommended one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from parastrat.estimate import Verdict
from parastrat.report.advice import caveat_lines, finding_lines, next_lines
from parastrat.report.breakdown import memory_lines, time_lines
from parastrat.report.commands import Step, estimate_command, recommend_command
from parastrat.report.headline import (
    VERDICT_TONES,
    VERDICT_WORDS,
    headline_lines,
    key_figures,
    recommended_sentence,
)
from parastrat.report.numbers import duration, gib, percent
from parastrat.report.recommendation import count_errors
from parastrat.report.tables import Column, Fill, Row, table_lines
from parastrat.report.text import Line, Tone, heading, rendered, wrapped
from parastrat.report.wording import option_words, plan_name
from parastrat.rungs import NEAR
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.finding import Finding
    from parastrat.report.commands import Context
    from parastrat.report.text import Paper
    from parastrat.result import SearchResult

#: parts of a step that differ by less are not why
_WORTH_NAMING = 0.005


def comparison_text(
    asked: tuple[Case, Sequence[Finding]], result: SearchResult, context: Context, paper: Paper
) -> str:
    """Return the report of ``why-not``.

    Args:
        asked: the best plan with the given axes, and what the rules say of it.
        result: the recommendation without them.
        context: the command line that asked.
        paper: the screen.
    """
    case, findings = asked
    chosen = result.chosen
    errors = count_errors(findings)
    tone = Tone.BAD if errors else VERDICT_TONES[case.estimate.verdict]
    sentence = compared_sentence(case, chosen, errors)
    lines = headline_lines(sentence, tone, result.facts, context, paper)
    lines += finding_lines(findings, paper)
    if chosen is None:
        lines += [*heading("Recommended", paper), *wrapped(recommended_sentence(result), paper, first="  ")]
    elif chosen.plan != case.plan:
        lines += _side_by_side(case, chosen, paper)
        lines += _time_differences(case, chosen, paper)
    lines += memory_lines(case, paper) + time_lines(case, paper) + caveat_lines(case.model.caveats, paper)
    return rendered(lines + next_lines(_next(case, chosen, context, errors), paper), paper)


def compared_sentence(case: Case, chosen: Case | None, errors: int) -> str:
    """Return what speaks against a plan, in one sentence."""
    name = plan_name(case)
    subject = f"{name[0].upper()}{name[1:]}"
    if errors:
        return f"Not {name}: it breaks {counted(errors, 'rule')}, and cannot run."
    if not case.estimate.fits:
        return f"Not {name}: it does not fit, {key_figures(case)}."
    if chosen is None:
        return f"{subject} can run, though nothing is recommended: {key_figures(case)}."
    if chosen.plan == case.plan:
        return f"{subject} is what parastrat recommends: {key_figures(case)}."
    ratio = case.estimate.time.step / chosen.estimate.time.step
    tight = case.estimate.verdict is Verdict.TIGHT and chosen.estimate.verdict is not Verdict.TIGHT
    # plans of one mesh differ in their options
    other = "the recommended plan of the same mesh" if plan_name(chosen) == name else plan_name(chosen)
    if not tight and 1 / NEAR < ratio < NEAR:
        return f"{subject} can run, as fast as {other}: of plans within 0.5 % the simplest is taken."
    if ratio > 1:
        return f"{subject} can run, and takes {percent(ratio - 1)} longer than {other}."
    if case.plan.rung > chosen.plan.rung:
        why = ", not enough for the higher rung"
    else:
        why = ", but does not fit with its margin" if tight else ""
    return f"{subject} can run {percent(1 - ratio)} faster than {other}{why}."


def _side_by_side(case: Case, chosen: Case, paper: Paper) -> list[Line]:
    columns = (
        Column(title=""),
        Column(title="this plan", most=(paper.width - 20) // 2),
        Column(title="recommended", most=(paper.width - 20) // 2),
    )
    pairs = zip(_facts_of(case).items(), _facts_of(chosen).values(), strict=True)
    rows = [Row(cells=(name, mine, other)) for (name, mine), other in pairs]
    return heading("Beside the recommended plan", paper) + table_lines(columns, rows, paper)


def _facts_of(case: Case) -> dict[str, str]:
    plan, estimate = case.plan, case.estimate
    return {
        "strategy": plan.strategy,
        "mesh": str(plan.mesh),
        "micro-batch": f"{plan.micro_batch_size} x {plan.gradient_accumulation_steps} steps",
        "options": ", ".join(option_words(plan)),
        "memory": f"{gib(estimate.memory.total)} GiB, {VERDICT_WORDS[estimate.verdict]}",
        "step": duration(estimate.time.step),
        "MFU": "unknown" if estimate.mfu is None else percent(estimate.mfu),
    }


def _time_differences(case: Case, chosen: Case, paper: Paper) -> list[Line]:
    """Return which parts of the step cost or save time, the largest first."""
    mine, other = case.estimate.time, chosen.estimate.time
    differences = {name: seconds - other.parts[name] for name, seconds in mine.parts.items()}
    named = [
        (name, change)
        for name, change in sorted(differences.items(), key=lambda pair: -abs(pair[1]))
        if abs(change) > _WORTH_NAMING * other.step
    ]
    if not named:
        return []
    columns = (
        Column(title="part"),
        Column(title="this plan", fill=Fill.NUMBER),
        Column(title="recommended", fill=Fill.NUMBER),
        Column(title="difference", fill=Fill.NUMBER),
    )
    rows = [
        Row(
            cells=(
                name.replace("_", " "),
                duration(mine.parts[name]),
                duration(other.parts[name]),
                f"{'+' if change > 0 else '-'}{duration(abs(change))}",
            )
        )
        for name, change in named
    ]
    return heading("Where the time differs", paper) + table_lines(columns, rows, paper)


def _next(case: Case, chosen: Case | None, context: Context, errors: int) -> list[Step]:
    steps = [Step(purpose="the recommendation in full", command=recommend_command(context))]
    if chosen is not None and chosen.plan != case.plan and case.estimate.fits and not errors:
        command = estimate_command(context, case.plan, "plan.toml")
        steps.append(Step(purpose="take this plan all the same", command=command))
    return steps
