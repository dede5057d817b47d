"""Lines of toned text, and the paper that they are set on. Plain strings come out; nothing is printed.

Not rich: it would take longer to import than the plan takes to find, and its tables wrap numbers.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

#: a number and its unit stay on one line
_TIED = re.compile(r"(?<=\d) (?=%|[GM]iB\b|[mu]?s\b)")
_NO_BREAK = "\u00a0"


class Tone(StrEnum):
    """What a stretch of text means; the value is its ANSI code."""

    PLAIN = ""
    STRONG = "1"
    GOOD = "32"
    CAUTION = "33"
    BAD = "31"
    FAINT = "2"
    HEADING = "1;36"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line."""

    text: str
    tone: Tone = Tone.PLAIN


Line: TypeAlias = tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """What the reader's screen can show."""

    width: int = 80
    colour: bool = False
    #: block characters can be encoded
    blocks: bool = True

    @property
    def measure(self) -> int:
        """Columns of running text: longer lines than this are hard to read."""
        return min(self.width, 100)


def line(text: str = "", tone: Tone = Tone.PLAIN) -> Line:
    """Return a line of one tone."""
    return (Span(text, tone),)


def wrapped(
    text: str, paper: Paper, *, tone: Tone = Tone.PLAIN, first: str = "", rest: str | None = None
) -> list[Line]:
    """Return running text as lines within the measure.

    Args:
        text: one paragraph.
        paper: the screen.
        tone: of all its lines.
        first: what the first line begins with, inside the measure.
        rest: what the others begin with; None: blanks of the same width.
    """
    return [
        line(row.replace(_NO_BREAK, " "), tone)
        for row in textwrap.wrap(
            _TIED.sub(_NO_BREAK, text),
            paper.measure,
            initial_indent=first,
            subsequent_indent=" " * len(first) if rest is None else rest,
            # addresses stay whole
            break_long_words=False,
            break_on_hyphens=False,
        )
    ]


def heading(text: str, paper: Paper) -> list[Line]:
    """Return a section's heading, with a blank line before it."""
    return [line(), *wrapped(text, paper, tone=Tone.HEADING)]


def labelled(label: str, text: str, paper: Paper, *, width: int = 11) -> list[Line]:
    """Return ``label  text``, the text set in a column of its own."""
    rows = wrapped(text, paper, first=" " * (width + 2))
    head = Span(f"  {label:<{width}}", Tone.FAINT)
    return [(head, Span(row[0].text[width + 2 :])) if place == 0 else row for place, row in enumerate(rows)]


def rendered(lines: Iterable[Sequence[Span]], paper: Paper) -> str:
    """Return lines as one string that ends with a newline; escape codes only on coloured paper."""
    return "".join(_row(row, paper) + "\n" for row in lines)


def _row(row: Sequence[Span], paper: Paper) -> str:
    if not paper.colour:
        return _writable("".join(span.text for span in row).rstrip(), paper)
    return "".join(
        f"\033[{span.tone.value}m{span.text}\033[0m" if span.tone.value and span.text else span.text
        for span in row
    )


def _writable(text: str, paper: Paper) -> str:
    """Return text that a screen without block characters can show."""
    return text if paper.blocks else text.encode("ascii", "replace").decode("ascii")
