"""``parastrat check``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parastrat.cli.completion import hardware_words
from parastrat.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from parastrat.check import Checked
    from parastrat.finding import Finding

_SCHEMA = "parastrat.check/1"


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    GITHUB = "github"


Paths = Annotated[
    list[str],
    typer.Argument(metavar="PATH...", help="plan.toml, accelerate's YAML, DeepSpeed's JSON, or folders."),
]
OnHardware = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HARDWARE",
        help="What the configuration is for, such as dgx-h100:8.",
        autocompletion=hardware_words,
    ),
]
ForModel = Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Preset or HF config.json.")]
AsFormat = Annotated[
    Format, typer.Option("--format", help="text, or github for annotations in a workflow.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def check(
    paths: Paths,
    *,
    on: OnHardware = None,
    model: ForModel = None,
    format_: AsFormat = Format.TEXT,
    as_json: AsJson = False,
) -> None:
    """Find what is wrong in config files, with the rules that plans are made by. Exits 1 on errors."""
    from parastrat.check import check_file, config_files
    from parastrat.check.known import Given
    from parastrat.cli.facts import hardware_of
    from parastrat.errors import ConfigError
    from parastrat.finding import Severity

    given = Given(model=model, hardware=None if on is None else hardware_of(on, None))
    files = [file for path in paths for file in config_files(Path(path))]
    if not files:
        raise ConfigError(
            f"no configuration in {', '.join(paths)}",
            hint="name plan.toml, accelerate's YAML or DeepSpeed's JSON",
        )
    checked = [check_file(file, given) for file in dict.fromkeys(files)]
    findings = [found for each in checked for found in each.findings]
    _print(checked, findings, format_, as_json=as_json)
    if any(found.severity is Severity.ERROR for found in findings):
        raise typer.Exit(InfeasibleError.exit_code)


def _print(checked: list[Checked], findings: list[Finding], format_: Format, *, as_json: bool) -> None:
    from parastrat.cli.output import paper, show, show_json
    from parastrat.records import plain
    from parastrat.report.check import check_text, github_text, summary_line

    if as_json and format_ is Format.GITHUB:
        raise UsageError("--json and --format github are two ways to print", hint="leave one out")
    if as_json:
        files = [
            {
                "path": str(each.path),
                "format": None if each.format is None else each.format.value,
                "not_judged": list(each.open),
            }
            for each in checked
        ]
        show_json({"schema": _SCHEMA, "files": files, "findings": [plain(found) for found in findings]})
    elif format_ is Format.GITHUB:
        show(github_text(findings))
    else:
        sources = {str(each.path): each.lines for each in checked}
        show(check_text(findings, sources, paper()) + summary_line(findings, len(checked)))
