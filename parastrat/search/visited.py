"""The plans of a space that may be the best of their groups, found without judging all of it.

Rows are meshes with micro-batch and schedule. What has a floor of its memory that does not fit is left out;
the others are judged in the order of floors of their steps, under the first policy that may fit, until none
is left below what was found. Of many rows the meshes are visited so first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.search.best_first import First, visit
from parastrat.search.judged import Judged, judge
from parastrat.search.space import option_counts, policies

if TYPE_CHECKING:
    from parastrat.search.bounded import Bounded, Searched
    from parastrat.search.obeying import Rejected

#: of more rows meshes are put in order first
_MANY = 6_000
#: meshes whose rows are put in order first, and rows that are judged first
_MESHES = _ROWS = First(of_each=80)
#: rows that are judged in any order
_HANDFUL = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The best plans that a search is for."""

    #: the group of every mesh of the space, counted from 0
    groups: Any
    #: from the least step of every group what a floor must not exceed to matter
    limits: Callable[[Any], Any]
    #: with the margin of memory; or those that fit without it alone
    roomy: bool = True
    #: whether the best is asked for alone, and not what speaks against others, which is not told then
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """What was found of a space so far."""

    space: Searched
    #: its rows with quick floors, if these were found before
    rows: Bounded | None
    #: for each recompute policy, what each mesh needs at least: floors, raised to its rows' once known
    memory: Any
    #: of each mesh, whether what floors of memory leave out of it was told
    told: Any
    judged: list[Judged] = field(default_factory=list)
    #: what floors of memory left out
    misfits: list[Rejected] = field(default_factory=list)
    #: plans of the rows that were judged, each time
    plans: list[int] = field(default_factory=list)
    #: where the best is asked for alone, and of all rows floors were found: those that may fit, though not
    #: with their margin, with the first policies that may
    tight: list[tuple[Bounded, Any]] = field(default_factory=list)
    #: rows to whose floors those of their meshes are not raised yet
    higher: list[Bounded] = field(default_factory=list)

    def visit(self, meshes: Any, wanted: Wanted) -> None:
        """Judge those rows of chosen meshes that may be the best of their groups.

        First rows are asked for that may have a plan with its margin, then, where none has, the others: no
        row is judged twice.
        """
        space = self.space
        if not len(meshes):
            return
        if space.few:
            if wanted.roomy:
                plain = space.without_floors
                rows = self._floored(meshes, wanted) if wanted.alone else plain(space.allowed.rows(meshes))
                places = np.flatnonzero(rows.may_fit(roomy=False).any(axis=0))
                if len(places):
                    self._judge(rows.at(places), wanted)
            return
        least = np.full(int(wanted.groups.max(initial=-1)) + 1, np.inf)
        if self.tight and not wanted.roomy:
            self._judge_in_order(*self.tight[0], wanted, least)
            return
        meshes = self._fitting(meshes, wanted)
        if not len(meshes):
            return
        if self.rows is not None or space.allowed.counts[meshes].sum() <= _MANY:
            self._visit_rows(meshes, wanted, least)
        else:

            def of_meshes(some: Any) -> Any:
                self._visit_rows(meshes[some], wanted, least)
                return np.full(len(some), np.inf)

            floors = space.steps_of_meshes(meshes)
            visit(floors, wanted.groups[meshes], of_meshes, wanted.limits, least=least, first=_MESHES)
            # there may be others
            self.tight.clear()
        self.told[meshes] = True

    def _fitting(self, meshes: Any, wanted: Wanted) -> Any:
        """Return those of some meshes that may fit by their floors; the others are told if asked for.

        Where they are not, floors of rows are found once, of those too that may fit without their margin.
        """
        if not wanted.alone:
            untold = meshes[~self.told[meshes]]
            misfits = self.space.misfits(untold, self.needs(untold))
            self.misfits.extend(misfits)
            for entry in misfits:
                self.told[untold[entry.rows]] = True
        self._raise()
        roomy = wanted.roomy and not wanted.alone
        return meshes[self.space.may_fit(self.memory.take(meshes, axis=1), roomy=roomy).any(axis=0)]

    def needs(self, meshes: Any) -> Any:
        """Return floors of what some meshes need, whatever their recompute policy."""
        self._raise()
        return self.memory.take(meshes, axis=1).min(axis=0)

    def raise_to(self, rows: Bounded) -> None:
        """Raise floors of meshes to those of their rows, mesh after mesh, once these are read."""
        self.higher.append(rows)

    def _raise(self) -> None:
        for rows in self.higher:
            first = np.flatnonzero(np.diff(rows.columns.mesh, prepend=-1))
            own, least = rows.columns.mesh[first], np.minimum.reduceat(rows.memory, first, axis=1)
            self.memory[:, own] = np.maximum(self.memory[:, own], least)
        self.higher.clear()

    def _visit_rows(self, meshes: Any, wanted: Wanted, least: Any) -> None:
        """Judge the rows of chosen meshes, in the order of floors of their steps, as far as they matter."""
        self._judge_in_order(*self._with_chance(self._floored(meshes, wanted), wanted), wanted, least)

    def _floored(self, meshes: Any, wanted: Wanted) -> Bounded:
        """Return the rows of chosen meshes with quick floors, closer ones where misfits are not told."""
        if self.rows is None:
            columns = self.space.allowed.rows(meshes)
            least = self.memory.take(columns.mesh, axis=1)
            return self.space.with_quick_floors(columns, least, closer=wanted.alone)
        chosen = np.zeros(self.memory.shape[1], dtype=bool)
        chosen[meshes] = True
        return self.rows.at(chosen[self.rows.columns.mesh].nonzero()[0])

    def _judge_in_order(self, rows: Bounded, first: Any, wanted: Wanted, least: Any) -> None:
        """Judge rows in the order of floors of their steps under the first policies that may fit."""
        if not len(first):
            return

        rows = rows.with_own_work()

        def of_rows(some: Any) -> Any:
            judged = self._judge(rows.at(some), wanted)
            return judged.least_steps(len(some), roomy=wanted.roomy)

        # a few are judged sooner than put in order, and mostly none of them fits; who asks what was judged
        # is told of no more than may matter
        few = wanted.alone and len(first) <= _HANDFUL
        floors = np.zeros(len(first)) if few else rows.space.steps(rows.columns, first)
        groups = wanted.groups[rows.columns.mesh]
        visit(floors, groups, of_rows, wanted.limits, least=least, first=_ROWS)

    def _with_chance(self, rows: Bounded, wanted: Wanted) -> tuple[Bounded, Any]:
        """Return those of some rows that may fit by quick floors, with the first policies that may.

        These compute least again: each policy does what the ones before it do, and more. Rows without a
        chance are told if asked for.
        """
        self.raise_to(rows)
        may_fit, likely = (rows.may_fit(roomy=roomy) for roomy in (False, True))
        fits = may_fit.any(axis=0)
        if not wanted.alone:
            self.misfits.extend(rows.at(np.flatnonzero(~fits & ~self.told[rows.columns.mesh])).misfits())
        roomy = likely.any(axis=0)
        # where all are a handful they are judged at once
        few = wanted.alone and np.count_nonzero(fits) <= _HANDFUL
        if not wanted.roomy:
            # rows that may have their margin were looked at before
            return _under_first(rows, may_fit, fits & ~roomy)
        if wanted.alone:
            self.tight.append(_under_first(rows, may_fit, fits & ~roomy & (not few)))
        return _under_first(rows, may_fit, fits) if few else _under_first(rows, likely, roomy)

    def _judge(self, rows: Bounded, wanted: Wanted) -> Judged:
        if not wanted.alone:
            self.plans.append(int(option_counts(rows.space.fixed, rows.columns).sum()))
        self.judged.append(judge(rows, alone=wanted.alone))
        return self.judged[-1]


def _under_first(rows: Bounded, may_fit: Any, kept: Any) -> tuple[Bounded, Any]:
    """Return the rows that are kept, with the first policies under which they may fit."""
    places = np.flatnonzero(kept)
    codes = np.array([code_of(policy) for policy in policies(rows.space.fixed)])
    return rows.at(places), codes[may_fit.take(places, axis=1).argmax(axis=0)]


def nothing_of(space: Searched, rows: Bounded | None = None) -> Visited:
    """Return what is found of a space before it is visited, but of rows their quick floors."""
    memory = space.memory_of_meshes()
    return Visited(space=space, rows=rows, memory=memory, told=np.zeros(memory.shape[1], dtype=bool))
