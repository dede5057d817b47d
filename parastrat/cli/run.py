"""``parastrat run``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.emit import PlanPath
from parastrat.errors import PlanFileError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case
    from parastrat.parse import Parsed

_SCHEMA = "parastrat.run/1"


def run(  # noqa: PLR0913 - one parameter a flag
    plan: PlanPath,
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="The training script.", show_default=False)
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS]...", help="Passed to the script as they are.", show_default=False),
    ] = None,
    nnodes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Nodes of the job, outside Slurm.")
    ] = None,
    node_rank: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Which of them this is, from 0.")
    ] = None,
    rdzv_endpoint: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where the nodes meet; the same on all.")
    ] = None,
    replan: Annotated[
        bool, typer.Option("--replan", help="Search again for the devices at hand, and run that plan.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on stdout; the job's output on stderr.")
    ] = False,
) -> None:
    """Run a training script under a plan. Flags of parastrat stand before the plan file."""
    from parastrat.cli.output import show_json
    from parastrat.parse import read_plan

    parsed = read_plan(plan)
    if not script.is_file():
        kind = "is a folder" if script.is_dir() else "is not there"
        raise UsageError(f"script {script} {kind}", hint="name the training script after the plan file")
    if replan:
        plan, parsed = _replanned(plan, parsed, nnodes)
    with _stdout_on_stderr(as_json):
        from parastrat.runtime.launch import run_plan

        code = run_plan(
            parsed,
            script,
            arguments or [],
            plan_path=plan.resolve(),
            nnodes=nnodes,
            node_rank=node_rank,
            rdzv_endpoint=rdzv_endpoint,
        )
    if as_json:
        show_json({"schema": _SCHEMA, "plan": str(plan), "script": str(script), "exit_code": code})
    if code:
        raise typer.Exit(1)


@contextmanager
def _stdout_on_stderr(wanted: bool) -> Iterator[None]:
    """Let this process and those that it starts write to stderr what they write to stdout."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _replanned(path: Path, parsed: Parsed, nnodes: int | None) -> tuple[Path, Parsed]:
    """Write the plan for the devices at hand beside the given one; return it.

    Raises:
        InfeasibleError: nothing fits there.
    """
    from parastrat.cli.output import tell, write_plan
    from parastrat.parse import read_plan

    case = _searched_again(path, parsed, nnodes)
    new = path.with_name(f"{path.stem}.replanned.toml")
    write_plan(case, new)
    mesh = parsed.plan.mesh if parsed.plan else None
    tell(f"re-planned for {case.hardware.name}: {case.plan.mesh} instead of {mesh}, written to {new}")
    return new, read_plan(new)


def _searched_again(path: Path, parsed: Parsed, nnodes: int | None) -> Case:
    from parastrat.case import Facts
    from parastrat.cli.facts import AUTO, Job, hardware_of, source_of
    from parastrat.errors import InfeasibleError
    from parastrat.hardware import DeviceType
    from parastrat.parse import resolved_ref
    from parastrat.profiles import load_stack
    from parastrat.search import find_plan

    workload = parsed.workload
    if parsed.model is None or workload is None:
        missing = "[model]" if parsed.model is None else "[workload]"
        raise PlanFileError(
            f"{path} has no {missing}: nothing to plan again for",
            hint="make a whole plan file with `parastrat recommend -o`",
        )
    of_processes = parsed.hardware is not None and parsed.hardware.device.type is DeviceType.CPU
    ranks = parsed.launch.ranks_per_node if parsed.launch and of_processes else None
    hardware = hardware_of(AUTO, ranks)
    if nnodes is not None:
        hardware = replace(hardware, num_nodes=nnodes)
    stack = load_stack(parsed.stack or "torch")
    source = source_of(resolved_ref(parsed.model.ref, path))
    model = source.at(workload.sequence_length, workload.precision, stack.kernels)
    facts = Facts(model=model, hardware=hardware, workload=workload, stack=stack)
    result = find_plan(facts, model_at=Job(facts=facts, source=source).model_at)
    if result.chosen is None:
        raise InfeasibleError(
            f"no plan for {parsed.model.ref} fits on {hardware.name}",
            hint="`parastrat recommend` shows what would",
        )
    return result.chosen
