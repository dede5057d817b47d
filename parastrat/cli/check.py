"""``parastrat check``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.completion import hardware_words, model_words
from parastrat.errors import InfeasibleError, ParastratError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.check import Checked, Given, Settings
    from parastrat.hardware import Hardware

_SCHEMA = "parastrat.check/1"
_IGNORE_FLAG = "--ignore"


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    GITHUB = "github"


@dataclass(frozen=True, kw_only=True)
class CheckFlags:
    """What is told, of which machines and model; it goes before what a project's settings say."""

    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="HARDWARE",
            help="What the configuration is for, such as dgx-h100:8.",
            autocompletion=hardware_words,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="MODEL", help="Preset or HF config.json.", autocompletion=model_words
        ),
    ] = None
    select: Annotated[
        str | None,
        typer.Option(
            "--select", metavar="CODES", help="Rules that are wanted: PS2,PS501 (instead of the settings')."
        ),
    ] = None
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            _IGNORE_FLAG,
            metavar="CODE=REASON",
            help="A rule to leave out, and why (beside the settings').",
        ),
    ] = None
    no_settings: Annotated[
        bool, typer.Option("--no-settings", help="Leave pyproject.toml and parastrat.toml unread.")
    ] = False


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...",
        help="plan.toml, accelerate's YAML, DeepSpeed's JSON, torchtitan's TOML and Python, "
        "Kubeflow's TrainJobs and PyTorchJobs, scripts, or folders.",
    ),
]
AsFormat = Annotated[
    Format, typer.Option("--format", help="text, or github for annotations in a workflow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def check(
    paths: Paths, flags: CheckFlags, *, format_: AsFormat = Format.TEXT, as_json: AsJson = False
) -> None:
    """Find what is wrong in config files, with the rules that plans are made by. Exits 1 on errors.

    [tool.parastrat.check] of the nearest pyproject.toml says which rules a project wants.
    """
    from parastrat.check import KNOWN, check_file, config_files, with_settings
    from parastrat.errors import ConfigError
    from parastrat.finding import Severity

    if as_json and format_ is Format.GITHUB:
        raise UsageError("--json and --format github are two ways to print", hint="leave one out")
    given = _of_flags(flags)
    files = [file for path in paths for file in config_files(Path(path))]
    if not files:
        raise ConfigError(
            f"no configuration in {', '.join(paths)}",
            hint=KNOWN,
        )
    checked, unread = [], []
    for file in dict.fromkeys(files):
        settings = _settings(file, flags)
        try:
            checked.append(with_settings(check_file(file, _with_usual(given, settings)), settings))
        except ConfigError as error:
            unread.append(error)
    if checked or not unread:
        _print(checked, format_, as_json=as_json)
    if unread:
        # the others' findings stand
        first, *others = unread
        more = "".join(f"; {error.message}" for error in others)
        raise ConfigError(f"{first.message}{more}", hint=first.hint)
    if any(found.severity is Severity.ERROR for each in checked for found in each.findings):
        raise typer.Exit(InfeasibleError.exit_code)


def _of_flags(flags: CheckFlags) -> Given:
    from parastrat.check import Given
    from parastrat.cli.facts import hardware_of

    return Given(model=flags.model, hardware=None if flags.on is None else hardware_of(flags.on, None))


def _settings(file: Path, flags: CheckFlags) -> Settings:
    """Return what is said of a file by its project and by the flags.

    Raises:
        ConfigError: the project's settings are malformed.
        UsageError: a flag names no rule, or no reason.
    """
    from parastrat.check import Ignore, Settings, settings_of
    from parastrat.rules.codes import code_prefix

    found = Settings() if flags.no_settings else settings_of(file)
    if flags.select is not None:
        codes = [code.strip() for code in flags.select.split(",")]
        _check_codes(codes, "--select")
        found = replace(found, select=tuple(code_prefix(code) for code in codes))
    for text in flags.ignore or ():
        code, _, reason = text.partition("=")
        _check_codes([code.strip()], _IGNORE_FLAG)
        if not reason.strip():
            raise UsageError(
                f"{_IGNORE_FLAG} {text}: no reason", hint=f'say why: {_IGNORE_FLAG} {code}="accepted: ..."'
            )
        ignore = Ignore(prefix=code_prefix(code.strip()), reason=reason.strip(), stated_in=_IGNORE_FLAG)
        found = replace(found, ignore=(*found.ignore, ignore))
    return found


def _check_codes(codes: Sequence[str], flag: str) -> None:
    from parastrat.check import code_problems

    for code in codes:
        for problem in code_problems(code, flag):
            raise UsageError(f"{problem.key} {problem.text}", hint=problem.hint)


def _with_usual(given: Given, settings: Settings) -> Given:
    """Return what is given, with the settings' machines and model for files that state none.

    Raises:
        ConfigError: there are no such machines, or there is no such model.
    """
    from parastrat.check import stated_model
    from parastrat.errors import ConfigError

    try:
        hardware = None if settings.on is None else _hardware(settings.on)
        if settings.model is not None:
            stated_model(settings.model)
    except ParastratError as error:
        raise ConfigError(f"{settings.shown}: {error.message}", hint=error.hint) from error
    return replace(given, usual_hardware=hardware, usual_model=settings.model)


@cache
def _hardware(ref: str) -> Hardware:
    from parastrat.cli.facts import hardware_of

    return hardware_of(ref, None)


def _print(checked: Sequence[Checked], format_: Format, *, as_json: bool) -> None:
    from parastrat.check import all_ignored
    from parastrat.cli.output import paper, show, show_json
    from parastrat.report.check import check_text, github_text, ignored_text, summary_line

    findings = [found for each in checked for found in each.findings]
    ignored, not_selected = all_ignored(checked), sum(each.not_selected for each in checked)
    if as_json:
        show_json(_table(checked))
    elif format_ is Format.GITHUB:
        show(github_text(findings, ignored, not_selected))
    else:
        sources = {str(each.path): each.lines for each in checked}
        show(
            check_text(findings, sources, paper())
            + summary_line(findings, len(checked))
            + ignored_text(ignored, not_selected, paper())
        )


def _table(checked: Sequence[Checked]) -> dict[str, object]:
    from parastrat.check import all_ignored
    from parastrat.records import plain

    files = [
        {
            "path": str(each.path),
            "format": None if each.format is None else each.format.value,
            "settings": None if each.settings is None else str(each.settings),
            "not_judged": list(each.open),
        }
        for each in checked
    ]
    return {
        "schema": _SCHEMA,
        "files": files,
        "findings": [plain(found) for each in checked for found in each.findings],
        "ignored": plain(all_ignored(checked)),
        "not_selected": sum(each.not_selected for each in checked),
    }
