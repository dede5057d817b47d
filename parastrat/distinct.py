"""Rows that differ in some columns alone, so that what hangs on those is computed once for each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from parastrat.columns import Columns

#: a table of marks may be so many times longer than the rows before it is compressed
_SPARSE = 4
#: a column whose values span so many times less than there are rows is not compressed first
_DENSE = 8


_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
#: columns that number the values which others have together, where a table has them: one is counted sooner
#: than several. ``sharding`` is for what knows cp as further shards alone, on a fixed number of devices.
NUMBERED = {
    "share": ("pp", "dp"),
    "width": ("cp", "tp", "ep", "sequence_parallel", "loss_parallel"),
    "layout": ("pp", "cp", "tp", "ep", "sequence_parallel", "loss_parallel", "shard"),
    "sharding": (*_AXES, "shard"),
    "mesh": (*_AXES, "dp", "shard", "sequence_parallel", "loss_parallel"),
}
#: so few rows are told apart as tuples
_FEW = 150
#: what hangs on so few rows is computed sooner than they are told apart
_HANDFUL = 100


def standing(columns: Columns, names: tuple[str, ...]) -> tuple[Columns, Any]:
    """Return rows of which what hangs on the named columns is computed, and for every row which it is.

    They are the distinct ones, or where there are few rows all of them as they are.
    """
    if len(columns.pp) <= _HANDFUL:
        return columns, np.arange(len(columns.pp))
    return distinct(columns, names)


def distinct(columns: Columns, names: tuple[str, ...]) -> tuple[Columns, Any]:
    """Return the rows that differ in the named columns, and for every row which of them it is.

    Rows may be told apart that differ in nothing named, where other columns number several together.

    The columns hold integers; plain numbers among them are equal in every row. Without sorting, which
    takes longer than what is saved: codes are marked in a table and counted.
    """
    rows = len(columns.pp)
    if rows <= _FEW:
        return _few(columns, names)
    names = _numbered(columns, names)
    key, size = np.zeros(rows, dtype=np.int64), 1
    for name in names:
        column = getattr(columns, name)
        if not getattr(column, "shape", ()):
            continue
        low = int(column.min())
        many = int(column.max()) - low + 1
        if many == 1:
            continue
        code = column - low
        if many > rows // _DENSE:
            found, code = places_of(code.astype(np.int64, copy=False))
            many = len(found)
        if size * many > _SPARSE * rows:
            found, key = places_of(key)
            size = len(found)
        key, size = key * many + code, size * many
    found, where = places_of(key)
    return columns.at(first_places(where)), where


def first_places(where: Any) -> Any:
    """Return the first row of each distinct one, of rows that are told which of those they are."""
    first = np.empty(int(where.max(initial=-1)) + 1, dtype=np.int64)
    # of repeated places the last write stays
    first[where[::-1]] = np.arange(len(where) - 1, -1, -1)
    return first


def _few(columns: Columns, names: tuple[str, ...]) -> tuple[Columns, Any]:
    read = [getattr(columns, name) for name in names]
    values = [column.tolist() for column in read if getattr(column, "shape", ())]
    keys = list(zip(*values, strict=True)) if values else [()] * len(columns.pp)
    first: dict[tuple[int, ...], int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    places = {key: place for place, key in enumerate(first)}
    rows = np.array(list(first.values()), dtype=np.int64)
    return columns.at(rows), np.array([places[key] for key in keys], dtype=np.int64)


def _numbered(columns: Columns, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names with one column for those that it numbers."""
    return next((shorter for code, shorter in _shortened(names) if columns.has(code)), names)


@cache
def _shortened(names: tuple[str, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the columns that may stand for several of the names, each with the names that are left."""
    of_mesh = {name for name in names if any(name in members for members in NUMBERED.values())}
    others = tuple(name for name in names if name not in of_mesh)
    return tuple((code, (code, *others)) for code, members in NUMBERED.items() if of_mesh.issubset(members))


def places_of(codes: Any) -> tuple[Any, Any]:
    """Return the codes that occur, from 0 on and the least first, and the place of each among them."""
    marks = np.zeros(int(codes.max(initial=-1)) + 1, dtype=bool)
    marks[codes] = True
    found = marks.nonzero()[0]
    # where codes are sparse most of the table is never touched
    places = np.empty(len(marks), dtype=np.int64)
    places[found] = np.arange(len(found))
    return found, places.take(codes)
