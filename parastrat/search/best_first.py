"""Rows visited in the order of their floors, until no floor is left below what was found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

#: rows that are visited first, of all groups together, and of each at least; then four times as many
_FIRST = 200
_OF_EACH = 12
_GROWTH = 4
#: so many times the first are visited at once: their floors would take longer to compare
_FEW = 3
#: rows whose floors are raised first, of all groups together
_RAISED = 4000

#: floors are computed in another order than what they bound, so that their last digits may differ
_ROUNDING = 1 + 1e-9


def visit(
    floors: Any,
    groups: Any,
    judge: Callable[[Any], Any],
    limits: Callable[[Any], Any],
    *,
    least: Any = None,
) -> None:
    """Visit rows until every one left has a floor above its group's limit.

    Args:
        floors: what each row's value does not fall below, infinite of rows that are not meant.
        groups: each row's group, counted from 0.
        judge: the values of some rows, infinite where a row has none.
        limits: from the least value of every group what a floor must not exceed to matter.
        least: the least value of every group so far, which is kept; none where it is not given.
    """
    if least is None:
        least = np.full(int(groups.max(initial=-1)) + 1, np.inf)
    left = _in_order(_mattering(np.flatnonzero(floors < np.inf), floors, groups, limits(least)), floors)
    take = _FIRST
    while len(left):
        now = _first_of(groups[left], take if len(left) > _FEW * _FIRST else len(left) * len(least))
        rows, left = left[now], left[~now]
        np.minimum.at(least, groups[rows], judge(rows))
        left = _mattering(left, floors, groups, limits(least))
        take *= _GROWTH


def visit_many(
    floors: Any,
    groups: Any,
    raised: Callable[[Any], Any],
    judge: Callable[[Any], Any],
    limits: Callable[[Any], Any],
) -> None:
    """Visit rows as ``visit`` does, whose floors at first are lower ones that take less time.

    ``raised`` returns the floors of some rows. It is asked first of the least ones alone, of which a few
    are judged, so that less is left to raise.
    """
    floors, least = floors.copy(), np.full(int(groups.max(initial=-1)) + 1, np.inf)
    first = _least_of_groups(floors, groups, _RAISED)
    low = np.ones(len(floors), dtype=bool)
    low[first] = False
    floors[first] = raised(first)
    known = _in_order(first[floors[first] < np.inf], floors)
    if len(known):
        few = known[_first_of(groups[known], _FIRST)]
        np.minimum.at(least, groups[few], judge(few))
        floors[few] = np.inf
    left = _mattering(np.flatnonzero(low), floors, groups, limits(least))
    floors[left] = raised(left)
    visit(floors, groups, judge, limits, least=least)


def _least_of_groups(floors: Any, groups: Any, many: int) -> Any:
    """Return the rows with the least floors of their groups, so many of all groups together."""
    several = [np.flatnonzero(groups == group) for group in np.flatnonzero(np.bincount(groups))]
    take = max(many // len(several), _OF_EACH)
    chosen = [own[np.argpartition(floors[own], take)[:take]] if len(own) > take else own for own in several]
    return np.sort(np.concatenate(chosen))


def _in_order(rows: Any, floors: Any) -> Any:
    return rows[np.argsort(floors[rows], kind="stable")]


def _mattering(rows: Any, floors: Any, groups: Any, limits: Any) -> Any:
    return rows[floors[rows] <= limits[groups[rows]] * _ROUNDING]


def _first_of(groups: Any, many: int) -> Any:
    """Return which rows are the first of their groups, so many of all groups together."""
    count = int(groups.max(initial=-1)) + 1
    return _place_in_group(groups, count) < max(many // max(count, 1), _OF_EACH)


def _place_in_group(groups: Any, count: int) -> Any:
    """Return how many earlier entries are of the same group."""
    # few groups: short integers are sorted by their digits
    order = np.argsort(groups.astype(np.int16), kind="stable")
    sizes = np.bincount(groups, minlength=count)
    starts = np.cumsum(sizes) - sizes
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(starts, sizes)
    return places
