"""``parastrat recommend``."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.flags import FixedFlags, JobFlags, OutputFlags
from parastrat.errors import UsageError
from parastrat.rungs import TOLERANCE

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.search import Constraints

Tolerance = Annotated[
    float,
    typer.Option(
        min=0.0,
        metavar="SHARE",
        help="A lower rung is taken when it is slower than the fastest by at most this share.",
    ),
]


Front = Annotated[
    bool, typer.Option("--front", help="Show as well what less memory costs in time, plan by plan.")
]


Applied = Annotated[
    bool, typer.Option("--applied", help="Only plans that auto_parallelize applies itself.")
]


def recommend(
    job: JobFlags,
    fixed: FixedFlags,
    output: OutputFlags,
    tolerance: Tolerance = TOLERANCE,
    *,
    applied: Applied = False,
    front: Front = False,
) -> None:
    """Find the plan for a model on some hardware, and say why."""
    from parastrat.cli.facts import compiled_facts, resolved
    from parastrat.cli.output import paper, show, show_json, write_plan
    from parastrat.search import find_plan, memory_front, with_others

    check_tolerance(tolerance)
    found = resolved(job)
    constraints = replace(checked_constraints(fixed, found.facts), applied=applied)
    result = find_plan(found.facts, constraints, tolerance=tolerance, model_at=found.model_at)
    compiled = None if result.chosen is None else compiled_facts(found)
    result = with_others(result, constraints, compiled)
    if front:
        result = replace(result, front=memory_front(found.facts, constraints))
    if output.output is not None and result.chosen is not None:
        write_plan(result.chosen, output.output)
    if output.as_json:
        from parastrat.report.json import recommendation_json

        show_json(recommendation_json(result))
    else:
        from parastrat.cli.typed import report_context
        from parastrat.report.recommendation import recommendation_text

        context = report_context(found, job, fixed, output, tolerance)
        if applied:
            context = replace(context, fixed=(*context.fixed, "--applied"))
        show(recommendation_text(result, context, paper()))
    if result.chosen is None:
        raise typer.Exit(1)


def check_tolerance(tolerance: float) -> None:
    """Check what ``--tolerance`` was given; ranges let nan and inf pass.

    Raises:
        UsageError: not a finite number.
    """
    if not isfinite(tolerance):
        raise UsageError(f"--tolerance {tolerance} is not a share", hint="write 0.05 for 5 %")


def checked_constraints(fixed: FixedFlags, facts: Facts) -> Constraints:
    """Return what the flags fix, for the search.

    Raises:
        UsageError: flags that contradict, degrees that do not divide the number of devices, a strategy
            that the search leaves out, or a micro-batch of absurd size.
    """
    from parastrat.cli.facts import check_countable
    from parastrat.cli.fixed import constraints_of
    from parastrat.cli.stages import check_stages
    from parastrat.cli.strategies import DataStrategy, check_degrees, strategy_of

    hardware, length = facts.hardware, facts.workload.sequence_length
    strategy = strategy_of(fixed)
    check_degrees(fixed, hardware)
    check_stages(fixed, facts)
    check_countable(fixed.micro_batch or 1, length, "a micro-batch")
    if strategy is not None and strategy.data in (DataStrategy.ZERO1, DataStrategy.ZERO2):
        raise UsageError(
            f"--strategy {fixed.strategy}: {strategy.data} is estimated, never recommended",
            hint="use fsdp2, which shards all that it does and more, or `parastrat estimate`",
        )
    return constraints_of(fixed, None if strategy is None else strategy.name)
