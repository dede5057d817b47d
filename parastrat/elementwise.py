"""Choices between numbers for one plan, and between arrays of them for many, as formulas take either.

Python's own for plain numbers: numpy takes twenty times as long for one.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.units import Mask, Numbers

#: places of kinds of block, and so many of each; of others there are none
Counts: TypeAlias = "Sequence[tuple[int, Numbers]]"

#: numpy looks its names up by a function of its own, whenever one is read
_ARRAY = np.ndarray
#: what is compared by Python itself
_PLAIN = frozenset((bool, int, float))

#: axes of what is known of kinds beside plans; where several policies are looked at there is one between
_KINDS = 2


def where(condition: Mask, yes: Numbers, no: Numbers) -> Numbers:
    """Return the one or the other, for each element of a mask; the one is finite where the other is 0."""
    if condition is True:
        return yes
    if condition is False:
        return no
    # processors guess what a mask holds, and multiply in a fifth of the time that wrong guesses take
    return condition * yes if type(no) is float and no == 0 else np.where(condition, yes, no)


def larger(one: Numbers, other: Numbers) -> Numbers:
    """Return the larger number, element by element."""
    if type(one) in _PLAIN and type(other) in _PLAIN:
        return one if one >= other else other  # noqa: FURB136 - ``max`` takes eight times as long
    return np.maximum(one, other)


def smaller(one: Numbers, other: Numbers) -> Numbers:
    """Return the smaller number, element by element."""
    if type(one) in _PLAIN and type(other) in _PLAIN:
        return one if one <= other else other  # noqa: FURB136 - as above
    return np.minimum(one, other)


def some(condition: Mask) -> bool:
    """Return whether a condition holds anywhere.

    It is counted where: numpy's ``any`` takes three times as long for what is looked at together.
    """
    return condition if type(condition) is bool else bool(np.count_nonzero(condition))


def common(condition: Mask) -> Mask:
    """Return a condition that holds everywhere or nowhere as a plain value: formulas skip parts then."""
    if type(condition) is not _ARRAY:
        return condition
    holding = np.count_nonzero(condition)
    if not holding:
        return False
    return True if holding == condition.size else condition


def taken(column: Numbers, places: Any) -> Numbers:
    """Return the elements at some places; a plain number is the same at all, as it is without places."""
    return column if places is None or type(column) is not _ARRAY else column.take(places, -1)


class ByKind:
    """What is known of kinds of block beside plans: kinds first, then policies if there are several.

    As a tuple with a number for each kind is read for one plan.
    """

    __slots__ = ("beside", "every", "flat", "rows")

    def __init__(self, every: Any) -> None:
        """Set an array; or a number, which is that of all kinds."""
        self.every = every
        self.flat: Any = None
        self.rows: Any = None
        self.beside: dict[int, Any] = {}

    def __getitem__(self, places: Any) -> Numbers:
        """Return what stands at some places, counted kind after kind."""
        every = self.every
        if type(every) is not _ARRAY:
            return every
        if every.ndim == _KINDS:
            return every.take(places)
        if self.flat is None:
            self.flat = every.swapaxes(0, 1).reshape(every.shape[1], -1)
        return self.flat.take(places, -1)

    def at(self, kind: int, rows: Any) -> Numbers:
        """Return what stands beside rows of plans of a kind, which is taken once for the same rows."""
        if type(self.every) is not _ARRAY:
            return self.every
        if rows is not self.rows:
            self.rows, self.beside = rows, {}
        if kind not in self.beside:
            self.beside[kind] = self.every[kind].take(rows, -1)
        return self.beside[kind]

    def __iter__(self) -> Iterator[Numbers]:
        return iter(self.every) if type(self.every) is _ARRAY else repeat(self.every)


def of_kinds(each: Any, counts: Counts, rows: Any = None, found: Numbers = 0.0) -> Numbers:
    """Return so many of each, added up one after another: sums of arrays round by how many rows there are.

    Args:
        each: numbers of each kind, or ``ByKind``.
        counts: of some kinds, numbers or arrays beside the rows.
        rows: which plans they are for; None: one alone.
        found: to what they are added, which may be changed.
    """
    if rows is None:
        for kind, count in counts:
            found += each[kind] * count
    else:
        for kind, count in counts:
            found += each.at(kind, rows) * count
    return found


def chosen(value: Any, places: Any) -> Any:
    """Return some entries of all arrays of a value, whose parts may be values as well."""
    if type(value) is _ARRAY:
        return value.take(places, -1)
    if isinstance(value, (tuple, list)):
        # what stands there several times is taken once
        once = {id(part): chosen(part, places) for part in {id(part): part for part in value}.values()}
        parts = [once[id(part)] for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else parts
    return value.at(places) if hasattr(value, "at") else value
