"""``parastrat why-not``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from parastrat.cli.flags import FixedFlags, JobFlags, OutputFlags
from parastrat.cli.recommend import Tolerance, check_tolerance, checked_constraints
from parastrat.errors import UsageError
from parastrat.rungs import TOLERANCE

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.cli.facts import Job


def why_not(
    job: JobFlags, fixed: FixedFlags, output: OutputFlags, tolerance: Tolerance = TOLERANCE
) -> None:
    """Show the best plan with the given axes beside the recommended one, and what speaks against it."""
    from parastrat.assess import columns_of
    from parastrat.cli.facts import resolved
    from parastrat.cli.output import paper, show, show_json, write_plan
    from parastrat.finding import Severity
    from parastrat.rules import findings_of
    from parastrat.search import find_plan

    if fixed == FixedFlags():
        raise UsageError("why not what? no axis is given", hint="add a flag, such as --tp 16")
    check_tolerance(tolerance)
    found = resolved(job)
    asked = _asked(found, fixed, tolerance)
    findings = findings_of(asked, columns_of(asked))
    result = find_plan(found.facts, tolerance=tolerance, model_at=found.model_at)
    if output.output is not None:
        write_plan(asked, output.output)
    if output.as_json:
        from parastrat.report.json import comparison_json

        show_json(comparison_json(asked, findings, result))
    else:
        from parastrat.cli.typed import report_context
        from parastrat.report.comparison import comparison_text

        context = report_context(found, job, fixed, output, tolerance)
        show(comparison_text((asked, findings), result, context, paper()))
    if not asked.estimate.fits or any(finding.severity is Severity.ERROR for finding in findings):
        raise typer.Exit(1)


def _asked(job: Job, fixed: FixedFlags, tolerance: float) -> Case:
    """Return the best plan with the given axes; where none can run, the one that flags alone describe."""
    from parastrat.cli.given_plan import given_case
    from parastrat.search import recommendation

    constraints = checked_constraints(fixed, job.facts)
    # the strategy is part of the question, not a choice to be held against the free one
    chosen = recommendation(job.facts, constraints, tolerance=tolerance)
    if chosen is not None:
        return chosen
    return given_case(job.facts, fixed if constraints.strategy is None else _completed(fixed))


def _completed(fixed: FixedFlags) -> FixedFlags:
    """Return the flags with a degree of 2 for axes that the strategy names and nobody sized."""
    axes = (fixed.strategy or "").lower().split("+")

    def degree(axis: str) -> int | None:
        given: int | None = getattr(fixed, axis)
        return 2 if given is None and axis in axes else given

    return replace(fixed, cp=degree("cp"), tp=degree("tp"), ep=degree("ep"), pp=degree("pp"))
