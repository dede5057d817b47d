"""Rows visited in the order of their floors, until no floor is left below what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

#: rows of a group that are visited first at least; then four times as many
_LEAST_OF_EACH = 5
_GROWTH = 4
#: so many are visited at once, or so many times as many as of a group at first, if they are less: their
#: floors would take longer to compare
_FEW, _TIMES = 200, 25

#: of more rows of so few groups those that are not visited next are not put in order
_MANY, _SEVERAL = 2000, 8

#: floors are computed in another order than what they bound, so that their last digits may differ
_ROUNDING = 1 + 1e-9


class First(NamedTuple):
    """How many rows are visited first. The less, the longer a visit takes."""

    #: of a group at most
    of_each: int = 24
    #: of all groups together, about
    of_all: int = 150


_FEW_FIRST = First()


def visit(
    floors: Any,
    groups: Any,
    judge: Callable[[Any], Any],
    limits: Callable[[Any], Any],
    *,
    least: Any = None,
    first: First = _FEW_FIRST,
) -> None:
    """Visit rows until every one left has a floor above its group's limit.

    Args:
        floors: what each row's value does not fall below, infinite of rows that are not meant.
        groups: each row's group, counted from 0.
        judge: the values of some rows, infinite where a row has none.
        limits: from the least value of every group what a floor must not exceed to matter.
        least: the least value of every group so far, which is kept; none where it is not given.
        first: how many rows are visited first.
    """
    if least is None:
        least = np.full(int(groups.max(initial=-1)) + 1, np.inf)
    left = mattering(floors, groups, limits(least))
    present = max(int(np.count_nonzero(np.bincount(groups[left]))), 1)
    of_each = min(max(first.of_all // present, _LEAST_OF_EACH), first.of_each)
    while len(left):
        at_once = len(left) <= min(_FEW, _TIMES * first.of_each)
        rows = _in_order(floors, left) if at_once else first_of_each(floors, groups, left, of_each)
        np.minimum.at(least, groups[rows], judge(rows))
        visited = np.zeros(len(floors), dtype=bool)
        visited[rows] = True
        left = left[~visited[left]]
        left = left[mattering(floors[left], groups[left], limits(least))]
        of_each *= _GROWTH


def first_of_each(floors: Any, groups: Any, left: Any, of_each: int) -> Any:
    """Return of the rows that are left the so many with the least floors of each group, in their order."""
    near = _in_order(floors, may_be_first(floors, groups, left, of_each))
    return near[place_in_group(groups[near]) < of_each]


def _in_order(floors: Any, rows: Any) -> Any:
    return rows[np.argsort(floors[rows], kind="stable")]


def may_be_first(floors: Any, groups: Any, left: Any, of_each: int) -> Any:
    """Return those of the rows that are left which may be the first so many of a group.

    They alone are put in order: of the others most do not matter once these were visited.
    """
    if len(left) <= _MANY:
        return left
    own, values = groups[left], floors[left]
    counts = np.bincount(own)
    present = np.flatnonzero(counts > of_each)
    if len(present) > _SEVERAL:
        return left
    highest = np.full(len(counts), np.inf)
    for group in present.tolist():
        of_group = values if len(counts) == 1 else values[own == group]
        highest[group] = np.partition(of_group, of_each - 1)[of_each - 1]
    return left[values <= highest[own]]


def mattering(floors: Any, groups: Any, limits: Any) -> Any:
    """Return the rows whose floors are finite, and not above their groups' limits."""
    return ((floors < np.inf) & (floors <= limits[groups] * _ROUNDING)).nonzero()[0]


def place_in_group(groups: Any) -> Any:
    """Return how many earlier entries are of the same group."""
    count = int(groups.max(initial=-1)) + 1
    # few groups: short integers are sorted by their digits
    order = np.argsort(groups.astype(np.int16), kind="stable")
    sizes = np.bincount(groups, minlength=count)
    starts = np.cumsum(sizes) - sizes
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return places
