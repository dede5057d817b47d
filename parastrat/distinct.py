"""Rows that differ in some columns alone, so that what hangs on those is computed once for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from parastrat.columns import Columns

#: a table of marks may be so many times longer than the rows before it is compressed
_SPARSE = 4


def distinct(columns: Columns, names: tuple[str, ...]) -> tuple[Columns, Any]:
    """Return the rows that differ in the named columns, and for every row which of them it is.

    The columns hold integers; plain numbers among them are equal in every row. Without sorting, which
    takes longer than what is saved: codes are marked in a table and counted.
    """
    rows = len(columns.pp)
    key, size = np.zeros(rows, dtype=np.int64), 1
    for name in names:
        column = getattr(columns, name)
        if not getattr(column, "shape", ()) or not rows:
            continue
        code, many = _counted(column.astype(np.int64, copy=False) - int(column.min()))
        if many == 1:
            continue
        key, size = key * many + code, size * many
        if size > _SPARSE * rows:
            key, size = _counted(key)
    where, size = _counted(key) if rows else (key, 0)
    first = np.empty(size, dtype=np.int64)
    # of repeated places the last write stays
    first[where[::-1]] = np.arange(rows - 1, -1, -1)
    return columns.at(first), where


def _counted(key: Any) -> tuple[Any, int]:
    """Return keys as positions among the keys that occur, and how many those are."""
    marks = np.zeros(int(key.max()) + 1, dtype=np.int64)
    marks[key] = 1
    places = np.cumsum(marks)
    return places[key] - 1, int(places[-1])
