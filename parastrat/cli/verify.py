"""``parastrat verify``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.flags import OtherHardware, OtherModel
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_Words = Annotated[
    list[str],
    typer.Argument(
        metavar="plan.toml | -- COMMAND",
        help="A plan, or the command line by which a script is launched: torchrun, python, parastrat run.",
        show_default=False,
    ),
]


@dataclass(frozen=True, kw_only=True)
class VerifyFlags:
    """Of what, and how much is run."""

    model: OtherModel = None
    on: OtherHardware = None
    rank: Annotated[
        str | None,
        typer.Option(
            "--rank", metavar="N,...", help="Which ranks [default: of a plan one of each kind, else 0]."
        ),
    ] = None
    steps: Annotated[
        int,
        typer.Option(
            "--steps",
            metavar="N",
            min=1,
            help="Optimizer steps of a script; the last one counts, and the first has no states yet.",
        ),
    ] = 2
    real: Annotated[
        bool,
        typer.Option(
            "--real",
            help="Of a plan: real tensors on an accelerator here, and what its allocator holds.",
        ),
    ] = False
    device: Annotated[
        str | None, typer.Option("--device", metavar="KIND", help="Of --real: cuda (the default) or cpu.")
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False


def verify(words: _Words, flags: VerifyFlags) -> None:
    """Dry-run a plan or a script without its cluster: true shapes, peak memory, collectives.

    One rank of each kind runs two steps on fake tensors among ranks that are not there; no memory is taken
    for weights. A pipeline has a kind for each place that holds other blocks.
    Exits 1 where it does not fit, and where a plan breaks a rule of severity error, which is told first.
    """
    is_plan = len(words) == 1
    if flags.device is not None and not flags.real:
        raise UsageError("--device is of --real", hint="without it tensors are fake and take no device")
    if flags.real and not is_plan:
        raise UsageError("--real is of plans, not of scripts", hint="run the script there, on one device")
    good = _plan(Path(words[0]), flags) if is_plan else _script(words, flags)
    if good is False:
        raise typer.Exit(1)


def _plan(path: Path, flags: VerifyFlags) -> bool:
    from parastrat.assess import assess, columns_of
    from parastrat.cli.output import paper, show, show_json
    from parastrat.cli.plan_case import PlanSource, planned_case
    from parastrat.parse import read_plan
    from parastrat.report.verification import (
        Verification,
        broken_text,
        verification_json,
        verification_text,
    )
    from parastrat.rules import findings_of
    from parastrat.runtime.dry_run import (
        preload,
        ranks_to_run,
        real_device,
        run_kinds,
        run_on_device,
    )

    device = real_device(flags.device) if flags.real else None
    source = PlanSource(path=path, parsed=read_plan(path), model=flags.model, on=flags.on)
    planned = planned_case(source, whole_model=True)
    if source.model_ref is None:
        raise UsageError(f"{path} does not say for which model it was made", hint="add --model")
    ranks = _ranks(flags.rank, planned.plan.mesh.world_size)
    # estimated anew: a plan file keeps the total of the version that wrote it
    case = replace(assess(planned.facts, planned.plan), launch=planned.launch)
    findings = findings_of(case, columns_of(case))
    if not flags.as_json:
        show(broken_text(findings, paper()))
    preload()
    ranks = ranks or ranks_to_run(planned.facts.model, planned.plan)
    task = (source.model_ref, planned.plan, planned.workload)
    if device is None:
        found = run_kinds(*task, ranks)
    else:
        found = tuple(run_on_device(*task, rank, device) for rank in ranks)
    verification = Verification(
        case=case,
        found=found,
        findings=findings,
        device=None if device is None else str(device),
    )
    if flags.as_json:
        show_json(verification_json(verification))
    else:
        show(verification_text(verification, paper()))
    return verification.fits and not verification.breaks


def _script(words: Sequence[str], flags: VerifyFlags) -> bool | None:
    from parastrat.cli.facts import hardware_of
    from parastrat.cli.output import paper, show, show_json
    from parastrat.report.script_run import ScriptRun, script_json, script_text
    from parastrat.runtime.dry_run import command_of, run_script

    command = command_of(words)
    ranks = _ranks(flags.rank, command.world_size) or (0,)
    capacity = None if flags.on is None else hardware_of(flags.on, None).device.usable_memory_bytes
    run = ScriptRun(
        command=tuple(words),
        world_size=command.world_size,
        steps=flags.steps,
        found=tuple(run_script(command, rank, flags.steps) for rank in ranks),
        capacity=capacity,
    )
    if flags.as_json:
        show_json(script_json(run))
    else:
        show(script_text(run, paper()))
    return run.fits


def _ranks(text: str | None, world_size: int) -> tuple[int, ...]:
    """Return the ranks that were asked for; none where nobody asked.

    Raises:
        UsageError: they are no numbers of ranks of this job.
    """
    if text is None:
        return ()
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) < world_size for word in words):
        raise UsageError(
            f"--rank {text} names no ranks of {world_size}", hint=f"0 to {world_size - 1}, as in 0,1"
        )
    return tuple(int(word) for word in words)
