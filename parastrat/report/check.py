"""What the checker found, as text and as annotations of GitHub's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Finding, Ignored, Severity
from parastrat.report.text import Line, Paper, Span, Tone, line, rendered, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_TONES = {Severity.ERROR: Tone.BAD, Severity.WARNING: Tone.CAUTION, Severity.INFO: Tone.FAINT}
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
#: columns that a line of a file is shown in at least, and what stands for its beginning
_LEAST = 40
_CUT = "..."


def check_text(findings: Sequence[Finding], sources: Mapping[str, Sequence[str]], paper: Paper) -> str:
    """Return findings with the lines that they point to.

    Args:
        findings: in the order in which they are told.
        sources: path to the lines of the file.
        paper: the screen.
    """
    rows: list[Line] = []
    for found in findings:
        rows += _block(found, sources.get(found.path or "", ()), paper)
    return rendered(rows, paper)


def _block(found: Finding, source: Sequence[str], paper: Paper) -> list[Line]:
    place = ":".join(str(part) for part in (found.path, found.line, found.column) if part is not None)
    rows: list[Line] = [
        (
            Span(f"{place}: "),
            Span(f"{found.severity.value} {found.code}", _TONES[found.severity]),
        )
    ]
    rows += wrapped(found.message, paper, first="  ")
    if found.line is not None and found.line <= len(source):
        rows += _pointed(found.line, found.column or 1, source[found.line - 1], paper)
    rows += wrapped(f"fix: {found.fix}", paper, first="  ", rest="       ")
    return [*rows, line()]


def _pointed(number: int, column: int, text: str, paper: Paper) -> list[Line]:
    """Return a line of the file with a caret below the place; of a long one what is around that."""
    margin = f"{number:>5} | "
    room, text = max(_LEAST, paper.width - len(margin)), text.replace("\t", " ")
    first = 0
    if len(text) > room:
        first = max(0, min(column - 1 - room // 3, len(text) - room))
        text = text[first : first + room]
        if first:
            text = _CUT + text[len(_CUT) :]
    rows = [line(margin + text, Tone.FAINT)]
    if column - first <= len(text):
        rows.append(line(" " * (len(margin) + column - first - 1) + "^", Tone.STRONG))
    return rows


def summary_line(findings: Sequence[Finding], files: int) -> str:
    """Return what was found, counted."""
    counts = [
        f"{count} {severity.value}{'s' if count != 1 and severity is not Severity.INFO else ''}"
        for severity in Severity
        if (count := sum(found.severity is severity for found in findings))
    ]
    checked = "1 file" if files == 1 else f"{files} files"
    return f"{checked} checked: {', '.join(counts) or 'nothing found'}\n"


def ignored_text(ignored: Sequence[Ignored], not_selected: int, paper: Paper) -> str:
    """Return what was found and is not told, and why; nothing where all is told."""
    rows: list[Line] = []
    for each in ignored:
        told = f"ignored: {_findings(each.count)} of {each.code} ({each.stated_in}: {each.reason})"
        rows += wrapped(told, paper, rest="  ")
    if not_selected:
        rows += wrapped(_not_selected(not_selected), paper, rest="  ")
    return rendered(rows, paper)


def _findings(count: int) -> str:
    return "1 finding" if count == 1 else f"{count} findings"


def _not_selected(count: int) -> str:
    return f"not selected: {_findings(count)} of rules that select leaves out"


def github_text(findings: Sequence[Finding], ignored: Sequence[Ignored] = (), not_selected: int = 0) -> str:
    """Return workflow commands, one a line: https://docs.github.com/actions/reference/workflow-commands."""
    notices = [
        f"::notice title={each.code} ignored::"
        + _data(f"{_findings(each.count)} ignored by {each.stated_in}: {each.reason}")
        for each in ignored
    ]
    if not_selected:
        notices.append(f"::notice title=not selected::{_data(_not_selected(not_selected))}")
    return "".join(f"{row}\n" for row in [*map(_command, findings), *notices])


def _command(found: Finding) -> str:
    fields = {"file": found.path, "line": found.line, "col": found.column, "title": found.code}
    stated = ",".join(
        f"{name}={_property(str(value))}" for name, value in fields.items() if value is not None
    )
    return f"::{_GITHUB[found.severity]} {stated}::{_data(f'{found.message} (fix: {found.fix})')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
