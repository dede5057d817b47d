"""``parastrat estimate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parastrat.cli.flags import FixedFlags, JobFlags, OutputFlags


def estimate(
    job: JobFlags,
    fixed: FixedFlags,
    output: OutputFlags,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the step as it passes there, for ui.perfetto.dev or chrome://tracing.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Estimate memory and time of one given plan.

    Axes that no flag fixes are 1; the data axes take the other ranks. What else is left out (micro-batch,
    recompute, schedule) is chosen: the fastest that fits.
    """
    from parastrat.assess import columns_of
    from parastrat.cli.facts import resolved
    from parastrat.cli.given_plan import given_case
    from parastrat.cli.output import paper, show, show_json, write_plan, write_trace
    from parastrat.finding import Severity
    from parastrat.memory.rooms import rooms_of
    from parastrat.rules import findings_of
    from parastrat.timeline import timeline_of

    found = resolved(job)
    case = given_case(found.facts, fixed)
    findings = findings_of(case, columns_of(case))
    rooms = rooms_of(case)
    broken = any(finding.severity is Severity.ERROR for finding in findings)
    # a schedule that no stack runs has no order
    timeline = None if broken else timeline_of(case)
    if output.output is not None:
        write_plan(case, output.output)
    if trace is not None:
        write_trace(timeline, trace)
    if output.as_json:
        from parastrat.report.json import estimate_json

        show_json(estimate_json(case, findings, rooms, timeline))
    else:
        from parastrat.cli.typed import report_context
        from parastrat.report.estimation import estimate_text

        context = report_context(found, job, fixed, output)
        show(estimate_text(case, findings, context, paper(), rooms, timeline))
    if not case.estimate.fits or broken:
        raise typer.Exit(1)
