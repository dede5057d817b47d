"""``parastrat run``."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.flags import PlanFile
from parastrat.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.cli.plan_case import PlanSource

Script = Annotated[Path, typer.Argument(metavar="script.py", show_default=False)]
Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[ARGUMENTS]", help="The script's own.", show_default=False)
]
_Nodes = Annotated[int | None, typer.Option("--nnodes", min=1, metavar="N", help="Nodes of the job.")]
_Rank = Annotated[int | None, typer.Option("--node-rank", min=0, metavar="N", help="This node's number.")]
_Endpoint = Annotated[
    str | None, typer.Option("--rdzv-endpoint", metavar="HOST:PORT", help="Where the nodes meet.")
]
_Replan = Annotated[
    bool, typer.Option("--replan", help="Search again for the devices at hand; same model and workload.")
]

_AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object; what the job prints goes to stderr.")
]

_SCHEMA = "parastrat.run/1"


def run(  # noqa: PLR0913 - a parameter is a flag
    plan: PlanFile,
    script: Script,
    arguments: Arguments = None,
    nnodes: _Nodes = None,
    node_rank: _Rank = None,
    rdzv_endpoint: _Endpoint = None,
    *,
    replan: _Replan = False,
    as_json: _AsJson = False,
) -> None:
    """Launch a script under a plan; the flags of run stand before plan.toml."""
    from parastrat.cli.output import show_json
    from parastrat.cli.plan_case import PlanSource
    from parastrat.parse import read_plan

    source = PlanSource(path=plan, parsed=read_plan(plan))
    check_script(script)
    if replan:
        source = replanned(source, nnodes)
    with _stdout_on_stderr() if as_json else nullcontext():
        from parastrat.runtime.launching.launch import run_plan

        code = run_plan(
            source.parsed,
            script,
            arguments or [],
            plan_path=source.path.resolve(),
            nnodes=nnodes,
            node_rank=node_rank,
            rdzv_endpoint=rdzv_endpoint,
        )
    if as_json:
        show_json({"schema": _SCHEMA, "plan": str(source.path), "script": str(script), "exit_code": code})
    if code:
        raise typer.Exit(1)


@contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Let this process and those that it starts write to stderr what they write to stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def check_script(script: Path) -> None:
    """Check that the script is there, and torch, before that is loaded.

    Raises:
        UsageError: one of them is not.
    """
    if str(script).startswith("-"):
        raise UsageError(f"{script} stands where the script does", hint="put run's flags before plan.toml")
    if not script.is_file():
        raise UsageError(f"there is no script {script}", hint="name the file that trains the model")
    if find_spec("torch") is None:
        raise UsageError("to run a plan takes torch, which is not installed", hint="pip install torch")


def replanned(source: PlanSource, num_nodes: int | None) -> PlanSource:
    """Return a plan for the devices at hand, written beside the old one as ``NAME.replanned.toml``.

    Model and workload stay; only plans that ``auto_parallelize`` applies are searched.

    Raises:
        InfeasibleError: none fits here.
    """
    from parastrat.cli.output import tell, write_plan
    from parastrat.cli.plan_case import PlanSource, facts_for
    from parastrat.hardware import DeviceType
    from parastrat.parse import read_plan
    from parastrat.probe import probe_hardware
    from parastrat.report.wording import plan_name
    from parastrat.search import Constraints, recommendation

    planned, launch = source.parsed.hardware, source.parsed.launch
    of_processes = planned is not None and planned.device.type is DeviceType.CPU
    # a host has as many CPU processes as somebody chose
    hardware = probe_hardware(ranks_per_node=launch.ranks_per_node if launch and of_processes else None)
    if num_nodes is not None:
        hardware = replace(hardware, num_nodes=num_nodes)
    facts = facts_for(source, hardware)
    chosen = recommendation(facts, Constraints(pp=1, cp=1, tp=1, ep=1))
    if chosen is None:
        raise InfeasibleError(
            f"no plan for {facts.model.name} fits on {hardware.name}",
            hint=f"parastrat recommend {source.model_ref} says what would",
        )
    path = source.path.with_name(f"{source.path.stem}.replanned.toml")
    write_plan(chosen, path)
    tell(f"re-planned for {hardware.name}: {plan_name(chosen)}; written to {path}")
    return PlanSource(path=path, parsed=read_plan(path))
