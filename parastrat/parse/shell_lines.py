"""Lines of a shell and their words, without expanding anything."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: what has brackets and signs of its own, or is one: an escape, a remark, a sum, a here-string, the
#: beginning of a here-document, a quote, and a bracket by itself
_MARKS = re.compile(
    r"\\.|(?:^|(?<=\s))#[^\n]*|\(\([^()]*(?:\([^()]*\)[^()]*)*\)\)|<<<"
    r"|<<-?[ \t]*(?:\"(?P<double>[^\"\n]+)\"|'(?P<single>[^'\n]+)'|\\?(?P<bare>[A-Za-z_][\w.-]*))"
    r"|'[^']*'|\"(?:\\.|[^\"\\])*\"|(?P<bracket>[()])",
    re.DOTALL,
)
#: where a condition begins, and where it ends
_CONDITION, _CONDITION_ENDS = re.compile(r"(?:^|\s)\[\[(?=\s)"), re.compile(r"\s\]\](?=[\s;&|)]|$)")
#: the beginning of a list that goes on in other lines
_LIST = re.compile(r"\s*(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)?)?[A-Za-z_]\w*\+?=\(")
#: a quote, list or condition that is open for more lines is none that was meant
_MOST_LINES = 200
#: stands for a substitution while a line is split
_HELD = re.compile("\0([0-9]+)\0")


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines with their first number; a backslash at the end joins the next, and what is open there.

    Quotes, lists and conditions in double brackets go on in other lines. What a here-document holds is
    data.
    """
    start, joined, until = 1, "", list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        if until:
            until = until[line.strip() == until[0] :]
            continue
        start = start if joined else number
        # a remark ends what is continued, whatever stands at its own end; in an open quote it is none
        is_remark = is_comment(line) and (not joined or words_of(joined) is not None)
        if line.endswith("\\") and not is_remark:
            joined += line[:-1] + " "
            continue
        whole = joined + line
        if not is_comment(whole) and _is_open(whole) and number - start < _MOST_LINES:
            joined = whole + "\n"
            continue
        marks = _MARKS.finditer(whole)
        until = [mark[quotes] for mark in marks for quotes in ("double", "single", "bare") if mark[quotes]]
        yield start, whole
        joined = ""
    if joined:
        yield start, joined


def _is_open(line: str) -> bool:
    """Whether a quote, a condition, or the bracket of a list, ends on another line."""
    if words_of(line) is None:
        return True
    plain = _MARKS.sub(lambda mark: mark["bracket"] or "_", line)
    if len(_CONDITION.findall(plain)) > len(_CONDITION_ENDS.findall(plain)):
        return True
    return _LIST.match(line) is not None and plain.count("(") > plain.count(")")


def is_comment(line: str) -> bool:
    """Whether a line is a remark alone."""
    return line.lstrip().startswith("#")


def words_of(line: str) -> list[str] | None:
    """Return a line's words, each substitution whole; None where a quote ends on another line."""
    held: list[str] = []
    try:
        words = shlex.split(_without_substitutions(line.replace("\0", ""), held), comments=True)
    except ValueError:
        return None
    return [_HELD.sub(lambda match: held[int(match[1])], word) for word in words]


def split_bare(text: str) -> list[str]:
    """Return the words of a text in which no quote counts, each substitution whole."""
    held: list[str] = []
    words = _without_substitutions(text, held).split()
    return [_HELD.sub(lambda match: held[int(match[1])], word) for word in words]


def _without_substitutions(line: str, held: list[str]) -> str:
    """Return a line whose ``$(...)`` are held out of it, and stand there by their number."""
    parts, begin = [], 0
    for match in re.finditer(r"\$\(", line):
        if match.start() < begin:
            continue  # within the one before
        end = closing_bracket(line, match.end())
        if end is None:
            break
        parts += [line[begin : match.start()], f"\0{len(held)}\0"]
        held.append(line[match.start() : end])
        begin = end
    return "".join([*parts, line[begin:]])


def closing_bracket(line: str, start: int) -> int | None:
    """Return the place behind the bracket that closes one; None where none does."""
    depth = 1
    for match in re.finditer(r"[()]", line[start:]):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return start + match.end()
    return None
