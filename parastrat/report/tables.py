"""Tables whose text columns wrap and whose numbers never do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from parastrat.report.text import Line, Span, Tone

if TYPE_CHECKING:
    from parastrat.report.text import Paper

_GAP = 2
_INDENT = 2


class Fill(Enum):
    """How a column takes its width."""

    #: as wide as its widest cell, set to the left
    TEXT = auto()
    #: as wide as its widest cell, set to the right
    NUMBER = auto()
    #: what the others leave, wrapped
    REST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    title: str
    fill: Fill = Fill.TEXT
    #: wrap beyond this width
    most: int = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    cells: tuple[str, ...]
    tone: Tone = Tone.PLAIN


def table_lines(columns: Sequence[Column], rows: Sequence[Row], paper: Paper) -> list[Line]:
    """Return a table with its titles; at most one column is ``Fill.REST``."""
    widths = _widths(columns, rows, paper)
    titles = Row(cells=tuple(column.title for column in columns), tone=Tone.FAINT)
    return [line for row in (titles, *rows) for line in _row_lines(columns, row, widths)]


def _widths(columns: Sequence[Column], rows: Sequence[Row], paper: Paper) -> list[int]:
    widths = [
        min(column.most, max(1, len(column.title), *(len(row.cells[place]) for row in rows)))
        for place, column in enumerate(columns)
    ]
    for place, column in enumerate(columns):
        if column.fill is Fill.REST:
            others = sum(widths) - widths[place] + _GAP * (len(columns) - 1) + _INDENT
            widths[place] = max(12, min(paper.width - others, column.most))
    return widths


def _row_lines(columns: Sequence[Column], row: Row, widths: Sequence[int]) -> list[Line]:
    cells = [
        textwrap.wrap(cell, width, break_on_hyphens=False) or [""]
        for cell, width in zip(row.cells, widths, strict=True)
    ]
    lines: list[Line] = []
    for depth in range(max(map(len, cells))):
        texts = [cell[depth] if depth < len(cell) else "" for cell in cells]
        set_texts = [
            f"{text:>{width}}" if column.fill is Fill.NUMBER else f"{text:<{width}}"
            for text, column, width in zip(texts, columns, widths, strict=True)
        ]
        lines.append((Span(" " * _INDENT + (" " * _GAP).join(set_texts).rstrip(), row.tone),))
    return lines
