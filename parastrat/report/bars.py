"""A quantity and its parts as steps of one bar, each on a row with its name and number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.report.text import Line, Span, Tone

if TYPE_CHECKING:
    from parastrat.report.text import Paper

#: a longer bar is not read better
_LONGEST = 96
_NAME = 12
_NUMBER = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One step of a bar."""

    name: str
    amount: float
    tone: Tone = Tone.PLAIN
    #: drawn lightly: room rather than substance
    hollow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruler:
    """The length that a bar is held against, drawn below it."""

    name: str
    amount: float


def bar_lines(
    parts: Sequence[Part],
    paper: Paper,
    *,
    written: Callable[[float], str],
    ruler: Ruler | None = None,
) -> list[Line]:
    """Return one row for each part, starting where the part above ends.

    Args:
        parts: in order; together they are the whole bar.
        paper: the screen.
        written: an amount as text.
        ruler: drawn below the parts; the scale reaches to it.
    """
    cells = min(_LONGEST, paper.width - _NAME - _NUMBER - 5)
    whole = max(sum(part.amount for part in parts), ruler.amount if ruler else 0.0)
    if whole <= 0:
        return []
    rows: list[Line] = []
    before = 0.0
    for part in parts:
        start, end = (round(cells * edge / whole) for edge in (before, before + part.amount))
        rows.append(
            (
                *_label(part.name, written(part.amount)),
                Span(" " * start),
                Span(_stroke(part, end - start, paper), part.tone),
            )
        )
        before += part.amount
    if ruler is not None:
        drawn = _measure(round(cells * ruler.amount / whole), paper)
        rows.append((*_label(ruler.name, written(ruler.amount)), Span(drawn, Tone.FAINT)))
    return rows


def _label(name: str, number: str) -> tuple[Span, Span]:
    return Span(f"  {name:<{_NAME}}", Tone.FAINT), Span(f"{number:>{_NUMBER}}  ")


def _stroke(part: Part, length: int, paper: Paper) -> str:
    """Return a part's stroke; one too short for a cell is a thin mark."""
    if length == 0:
        return "" if part.amount == 0 else ("\u258f" if paper.blocks else "|")
    if part.hollow:
        return ("\u2591" if paper.blocks else ".") * length
    return ("\u2588" if paper.blocks else "#") * length


def _measure(length: int, paper: Paper) -> str:
    left, middle, right = "\u251c\u2500\u2524" if paper.blocks else "|-|"
    return left + middle * max(0, length - 2) + right
