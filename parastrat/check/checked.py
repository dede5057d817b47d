"""What the rules say of one file, finding by finding, in the order of its lines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.finding import Finding, Hit, Severity
from parastrat.parse.problems import Problem
from parastrat.rules import rule_named
from parastrat.rules.rule import finding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from parastrat.config_file import ConfigFormat
    from parastrat.finding import Ignored
    from parastrat.parse.config_text import ConfigSyntaxError


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the rules say of one file."""

    path: Path
    format: ConfigFormat | None
    findings: tuple[Finding, ...]
    #: the file's lines, to show where a finding is
    lines: tuple[str, ...]
    #: codes of rules that need facts which nobody stated
    open: tuple[str, ...] = ()
    #: what the settings leave out, and how many findings they do not ask for
    ignored: tuple[Ignored, ...] = ()
    not_selected: int = 0
    #: where the settings stand
    settings: Path | None = None


def of_syntax(path: Path, error: ConfigSyntaxError) -> Finding:
    """Return the finding of a file that is not of its format."""
    problem = Problem(key="", text=error.message, hint=error.hint, position=error.position, code="PS600")
    return of_problem(path, problem)


def of_problem(path: Path, problem: Problem) -> Finding:
    """Return the finding of a problem of form, with the rule that explains it."""
    rule = rule_named(problem.code)
    if rule is None:
        raise AssertionError(f"no rule {problem.code}")
    line, column = problem.position or (None, None)
    return replace(
        finding(rule, Hit(message=problem.message, fix=problem.hint)),
        path=str(path),
        line=line,
        column=column,
    )


def placed(
    path: Path, found: Finding, key: str | None, positions: Mapping[str, tuple[int, int]]
) -> Finding:
    """Return a finding with the position of its key, or of the nearest table around it."""
    while key and key not in positions:
        key = key.rpartition(".")[0]
    line, column = positions[key] if key else (None, None)
    return replace(found, path=str(path), line=line, column=column)


def ordered(found: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return findings in the order of their lines, graver ones first."""
    severities = list(Severity)
    return tuple(
        sorted(
            found,
            key=lambda each: (each.line or 0, each.column or 0, severities.index(each.severity), each.code),
        )
    )
