"""``parastrat emit``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case
    from parastrat.emit import TextFile
    from parastrat.parse import Parsed
    from parastrat.plan import Plan

_SCHEMA = "parastrat.emit/1"

PlanPath = Annotated[
    Path, typer.Argument(metavar="PLAN", help="A plan file, such as plan.toml.", show_default=False)
]


def emit(  # noqa: PLR0913 - one parameter a flag
    plan: PlanPath,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="torchrun, slurm or python.")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="Write the files here.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="For a plan file that names none.")
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", metavar="HARDWARE", help="For a plan file that names none.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite what is in the way.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
) -> None:
    """Write a plan for a launcher, or as plain torch code.

    Without -o the file is printed; where there are several, the one that starts the job.
    """
    from parastrat.cli.files import write_files
    from parastrat.cli.output import show, show_json, tell
    from parastrat.emit import EMITTERS, Target, emitted
    from parastrat.parse import read_plan, relative_ref, resolved_ref

    target = _target(to, list(Target))
    parsed = read_plan(plan)
    case = planned_case(plan, parsed, model, on)
    written: tuple[Path, ...] = ()
    if output is None:
        files = EMITTERS[Target(target)](case)
    else:
        ref = resolved_ref(case.model.ref, plan) if model is None else model
        stored = relative_ref(ref, output / "plan.toml")
        files = emitted(Target(target), case, stored_ref=stored)
        written = write_files(files, output, force=force)
    if as_json:
        show_json(_table(target, files, written))
    elif written:
        for path in written:
            tell(f"wrote {path}")
    else:
        show("".join(file.text for file in files))


def _target(text: str, known: Sequence[str]) -> str:
    if text in known:
        return text
    from parastrat.profiles import nearest

    near = nearest(text, known)
    raise UsageError(
        f"unknown target {text!r}",
        hint=f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}",
    )


def _table(target: str, files: Sequence[TextFile], written: Sequence[Path]) -> dict[str, object]:
    return {
        "schema": _SCHEMA,
        "target": target,
        "files": [
            {"path": file.path, "text": file.text, "executable": file.executable} for file in files
        ],
        "written": [str(path) for path in written],
    }


def planned_case(path: Path, parsed: Parsed, model: str | None, on: str | None) -> Case:
    """Return what a plan file says as a case; MODEL and hardware that it does not name come from flags.

    Raises:
        PlanFileError: the file has no plan.
        UsageError: the file names no model or hardware, and no flag does.
    """
    from parastrat.case import Case
    from parastrat.errors import PlanFileError
    from parastrat.parse import FingerprintedModel
    from parastrat.profiles import load_stack

    if parsed.plan is None:
        raise PlanFileError(f"{path} has no [plan]", hint="make one with `parastrat recommend -o`")
    workload, hardware, fingerprint = parsed.workload, parsed.hardware, parsed.model
    launch, estimate = parsed.launch, parsed.estimate
    if (
        workload is None
        or hardware is None
        or fingerprint is None
        or launch is None
        or estimate is None
        or model is not None
        or on is not None
    ):
        return _assessed(path, parsed, model, on)
    return Case(
        model=FingerprintedModel(fingerprint),  # type: ignore[arg-type] # stands for one; see its class
        hardware=hardware,
        workload=workload,
        stack=load_stack(parsed.stack or "torch"),
        plan=parsed.plan,
        estimate=estimate,
        launch=launch,
    )


def _assessed(path: Path, parsed: Parsed, model: str | None, on: str | None) -> Case:
    """Assess a plan anew, because its file or its user changed what it is for."""
    from parastrat.assess import assess
    from parastrat.cli.facts import resolved
    from parastrat.cli.flags import JobFlags
    from parastrat.cli.strategies import check_world
    from parastrat.parse import resolved_ref

    plan: Plan | None = parsed.plan
    ref = model or (resolved_ref(parsed.model.ref, path) if parsed.model else None)
    if plan is None or ref is None or (on is None and parsed.hardware is None):
        missing = "--model MODEL" if ref is None else "--on HARDWARE"
        raise UsageError(f"{path} does not say what it is for", hint=f"add {missing}")
    stated = parsed.workload
    flags = JobFlags(
        model=ref,
        on=on or "cpu",
        seq_len=stated.sequence_length if stated else None,
        global_batch=plan.global_batch_size,
        precision=plan.precision,
        optimizer=stated.optimizer if stated else None,
        stack=parsed.stack or "torch",
    )
    facts = resolved(flags).facts
    if on is None and parsed.hardware is not None:
        facts = replace(facts, hardware=parsed.hardware)
    check_world(plan.mesh, facts.hardware)
    return assess(facts, plan)
