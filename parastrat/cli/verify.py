"""``parastrat verify``."""

from __future__ import annotations

from typing import Annotated

import typer

from parastrat.cli.flags import OtherHardware, OtherModel, PlanFile

_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def verify(
    plan: PlanFile, model: OtherModel = None, on: OtherHardware = None, *, as_json: _AsJson = False
) -> None:
    """Dry-run a plan without its cluster: the real wrapping, true shapes, peak memory, collectives.

    One rank of each kind runs two steps on fake tensors among ranks that are not there; no memory is taken
    for weights. A pipeline has a kind for each place that holds other blocks.
    Exits 1 where it does not fit.
    """
    from parastrat.assess import assess
    from parastrat.cli.output import paper, show, show_json
    from parastrat.cli.plan_case import PlanSource, planned_case
    from parastrat.errors import UsageError
    from parastrat.parse import read_plan
    from parastrat.report.verification import Verification, verification_json, verification_text
    from parastrat.runtime.dry_run import preload, ranks_to_run, run_on_fakes

    source = PlanSource(path=plan, parsed=read_plan(plan), model=model, on=on)
    planned = planned_case(source, whole_model=True)
    if source.model_ref is None:
        raise UsageError(f"{plan} does not say for which model it was made", hint="add --model")
    preload()
    found = tuple(
        run_on_fakes(source.model_ref, planned.plan, planned.workload, rank)
        for rank in ranks_to_run(planned.facts.model, planned.plan)
    )
    # estimated anew: a plan file keeps the total of the version that wrote it
    verification = Verification(case=assess(planned.facts, planned.plan), found=found)
    if as_json:
        show_json(verification_json(verification))
    else:
        show(verification_text(verification, paper()))
    if not verification.fits:
        raise typer.Exit(1)
