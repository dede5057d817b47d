"""``parastrat emit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.completion import target_words
from parastrat.cli.flags import OtherHardware, OtherModel, PlanFile
from parastrat.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case
    from parastrat.cli.plan_case import PlanSource
    from parastrat.emit import Container, Target, TextFile

_SCHEMA = "parastrat.emit/1"

_To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TARGET",
        help="torchrun, slurm, mpirun, kubernetes, accelerate, python or torchtitan.",
        show_default=False,
        autocompletion=target_words,
    ),
]
_Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Write the files here, not to stdout."),
]
_Image = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="For kubernetes: what has the script and parastrat."),
]
_Script = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="COMMAND",
        help='For kubernetes: such as "train.py --epochs 3"; else YOUR_SCRIPT.py, to be replaced.',
    ),
]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite files with other contents.")]
_AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the files.")]


def emit(  # noqa: PLR0913 - a parameter is a flag
    plan: PlanFile,
    to: _To,
    output: _Output = None,
    model: OtherModel = None,
    on: OtherHardware = None,
    *,
    image: _Image = None,
    script: _Script = None,
    force: _Force = False,
    as_json: _AsJson = False,
) -> None:
    """Write what a plan amounts to for a launcher, or as plain torch code."""
    from parastrat.cli.files import write_files
    from parastrat.cli.output import show, show_json, tell
    from parastrat.cli.plan_case import PlanSource, planned_case
    from parastrat.emit import READ_THE_MODEL
    from parastrat.parse import read_plan
    from parastrat.records import plain

    target = _target(to)
    container = _container(target, image, script)
    source = PlanSource(path=plan, parsed=read_plan(plan), model=model, on=on)
    case = planned_case(source, whole_model=target in READ_THE_MODEL)
    _tell_broken(source)
    written: tuple[Path, ...] = ()
    if output is None:
        files = _files(target, case, source, container)
    else:
        files = _with_plan(target, case, source, container, output)
        written = write_files(files, output, force=force)
    if as_json:
        show_json(
            {
                "schema": _SCHEMA,
                "target": target.value,
                "files": plain(files),
                "written": [str(path) for path in written],
            }
        )
    elif output is None:
        show(_as_text(files))
    else:
        for path in written:
            tell(f"wrote {path}")


def _tell_broken(source: PlanSource) -> None:
    """Say on stderr which rules of severity error the plan breaks; it is written all the same."""
    from parastrat.check import Given, check_file
    from parastrat.cli.facts import hardware_of
    from parastrat.cli.output import tell
    from parastrat.finding import Severity
    from parastrat.report.commands import typed

    hardware = None if source.on is None else hardware_of(source.on, None)
    checked = check_file(source.path, Given(model=source.model, hardware=hardware))
    codes = sorted({each.code for each in checked.findings if each.severity is Severity.ERROR})
    if codes:
        given = (("--model", source.model), ("--on", source.on))
        flags = [word for flag, value in given if value is not None for word in (flag, value)]
        tell(f"warning: this plan breaks {', '.join(codes)}: {typed('check', str(source.path), *flags)}")


def _target(name: str) -> Target:
    """Return the target of a name.

    Raises:
        UsageError: there is none; the hint has the nearest.
    """
    from parastrat.emit import Target
    from parastrat.profiles import nearest

    if name in list(Target):
        return Target(name)
    near = nearest(name, list(Target))
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(Target)}"
    raise UsageError(f"unknown target {name!r}", hint=hint)


def _container(target: Target, image: str | None, script: str | None) -> Container | None:
    """Return what runs in the pods of a job; None for targets without any.

    Raises:
        UsageError: a flag that the target has no use for, or what no shell takes for a command.
    """
    import shlex

    from parastrat.emit import Container, Target

    if target is not Target.KUBERNETES:
        for flag, value in (("--image", image), ("--script", script)):
            if value is not None:
                raise UsageError(f"{flag} is for --to kubernetes alone", hint=f"leave {flag} out")
        return None
    if image is not None and (not image or any(letter.isspace() for letter in image)):
        raise UsageError(f"--image {image!r} is no image's name", hint="such as registry.org/me/train:1")
    try:
        words = () if script is None else tuple(shlex.split(script))
    except ValueError as error:
        raise UsageError(f"--script {script!r}: {error}", hint="close what is quoted") from error
    if script is not None and not words:
        raise UsageError("--script is empty", hint='such as "train.py --epochs 3"')
    return Container(image=image) if script is None else Container(image=image, script=words)


def _files(
    target: Target, case: Case, source: PlanSource, container: Container | None
) -> tuple[TextFile, ...]:
    """Return a target's files; what they need to know of the model's layers is found on its code."""
    from parastrat.emit import EMITTERS, Target, accelerate, emitted, python

    if target is Target.KUBERNETES:
        return emitted(target, case, container=container)
    if target is Target.ACCELERATE:
        return accelerate.emit(case, _layers(case, source))
    mesh = case.plan.mesh
    if target is not Target.PYTHON or mesh.tp == mesh.pp == 1 or source.model_ref is None:
        return EMITTERS[target](case)
    python.check_plan(case)
    from parastrat.runtime.emission import proven_division, proven_staging

    ref = source.model_ref
    division = proven_division(ref, case) if mesh.tp > 1 else None
    staging = proven_staging(ref, case, division) if mesh.pp > 1 else None
    return python.emit(case, division, staging)


def _layers(case: Case, source: PlanSource) -> tuple[str, ...]:
    """Return the classes of the repeated blocks of a model's own code; transformers' models name theirs."""
    from parastrat.sources import load_source

    ref = source.model_ref
    if not case.plan.shards_parameters or ref is None or load_source(ref) is not None:
        return ()
    from parastrat.runtime.emission import block_classes

    return block_classes(ref)


def _with_plan(
    target: Target, case: Case, source: PlanSource, container: Container | None, output: Path
) -> tuple[TextFile, ...]:
    """Return a target's files with the plan that they read, unless that is the file read from."""
    from parastrat.emit import BRING_THE_PLAN, emitted
    from parastrat.parse import relative_ref

    if target not in BRING_THE_PLAN:
        return _files(target, case, source, container)
    ref = source.model_ref
    stored = None if ref is None else relative_ref(ref, output / source.path.name)
    files = emitted(target, case, stored_ref=stored, container=container)
    return tuple(file for file in files if (output / file.path).resolve() != source.path.resolve())


def _as_text(files: Sequence[TextFile]) -> str:
    """Return one file as it is; several with their names above them."""
    if len(files) == 1:
        return files[0].text
    return "".join(f"# ---- {file.path}\n{file.text}\n" for file in files)
