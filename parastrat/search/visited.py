"""The plans of a space that may be the best of their groups, found without judging all of it.

Rows, meshes with micro-batch and schedule, are visited in the order of a floor of their step; what has a
floor above what was found is left out. Their memory is bounded when their turn comes, which takes longer
than to tell the order: what has a floor that does not fit is left out as well, and others are judged in the
order of the higher floors of their steps that policies have which may fit. Of many rows the meshes are
visited so first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.search.best_first import visit
from parastrat.search.judged import Judged, judge
from parastrat.search.space import option_counts, policies

if TYPE_CHECKING:
    from parastrat.columns import Columns
    from parastrat.search.bounded import Bounded, Searched
    from parastrat.search.obeying import Rejected

#: of more rows meshes are put in order first
_MANY = 12_000
#: meshes of a group whose rows are put in order first, at most
_MOST_OF_EACH = 80
#: rows of a group whose memory is bounded first, at most
_ROWS_OF_EACH = 80
#: rows that are judged sooner than put in order
_FEW = 300


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
    #: for each recompute policy, what each mesh needs at least: floors, raised to its rows' once known
    memory: Any
    #: of each mesh, whether what floors of memory leave out of it was told
    told: Any
    #: of each mesh how many rows were bounded; these
    bounded: Any
    rows: list[Bounded] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    #: what floors of memory left out
    misfits: list[Rejected] = field(default_factory=list)
    #: plans of the rows that were judged, each time
    plans: list[int] = field(default_factory=list)

    def visit(self, meshes: Any, wanted: Wanted) -> None:
        """Judge those rows of chosen meshes that may be the best of their groups.

        First rows are asked for that may have a plan with its margin, then, where none has, the others: no
        row is judged twice.
        """
        space = self.space
        if space.few:
            if wanted.roomy:
                columns = space.allowed.rows(meshes)
                rows = (
                    space.with_quick_floors(columns, 0.0) if wanted.alone else space.without_floors(columns)
                )
                places = np.flatnonzero(rows.may_fit(roomy=False).any(axis=0))
                if len(places):
                    self._judge(rows, places, wanted)
            return
        least = np.full(int(wanted.groups.max(initial=-1)) + 1, np.inf)
        if not wanted.roomy:
            self._judge_others(meshes, wanted, least)
            meshes = meshes[~self.seen[meshes]]
        meshes = self._fitting(meshes, wanted)
        if space.allowed.counts[meshes].sum() <= _MANY:
            self._visit_rows(meshes, wanted, least)
        else:

            def of_meshes(some: Any) -> Any:
                self._visit_rows(meshes[some], wanted, least)
                return np.full(len(some), np.inf)

            floors = space.steps_of_meshes(meshes)
            visit(floors, wanted.groups[meshes], of_meshes, wanted.limits, least=least, most=_MOST_OF_EACH)
        self.told[meshes] = True

    def _judge_others(self, meshes: Any, wanted: Wanted, least: Any) -> None:
        """Judge those rows of chosen meshes that were bounded, but not judged as none has its margin."""
        asked = np.zeros(len(self.told), dtype=bool)
        asked[meshes] = True
        for rows in self.rows:
            alive = asked[rows.columns.mesh]
            if alive.any():
                self._judge_best(rows, alive & self._alive(rows, wanted), wanted, least)

    def _fitting(self, meshes: Any, wanted: Wanted) -> Any:
        """Return those of some meshes that may fit by their floors; the others are told if asked for."""
        if not wanted.alone:
            untold = meshes[~self.told[meshes]]
            misfits = self.space.misfits(untold, self.needs(untold))
            self.misfits.extend(misfits)
            for entry in misfits:
                self.told[untold[entry.rows]] = True
        return meshes[self._may_fit(meshes, wanted).any(axis=0)]

    def needs(self, meshes: Any) -> Any:
        """Return floors of what some meshes need, whatever their recompute policy."""
        return self.memory.take(meshes, axis=1).min(axis=0)

    def _may_fit(self, meshes: Any, wanted: Wanted) -> Any:
        """Return under which policies some meshes may fit by their floors."""
        return self.space.may_fit(self.memory.take(meshes, axis=1), roomy=wanted.roomy)

    def raised_to_least(self, meshes: Any) -> Bounded:
        """Raise the floors of some meshes to those of their rows that need least, and return these rows."""
        rows = self.space.least_rows(meshes)
        self._raise(rows)
        return rows

    def _raise(self, rows: Bounded) -> None:
        """Raise the floors of meshes to those of the rows of each of which one needs least."""
        # they stand mesh after mesh
        first = np.flatnonzero(np.diff(rows.columns.mesh, prepend=-1))
        own, least = rows.columns.mesh[first], np.minimum.reduceat(rows.memory, first, axis=1)
        self.memory[:, own] = np.maximum(self.memory[:, own], least)

    def _visit_rows(self, meshes: Any, wanted: Wanted, least: Any) -> None:
        """Judge the rows of chosen meshes, in the order of floors of their steps, as far as they matter."""
        if not len(meshes):
            return
        space = self.space
        quick, first = self._with_chance(space.allowed.rows(meshes), wanted)
        columns = quick.columns

        def of_rows(some: Any) -> Any:
            rows = quick.at(some)
            self.rows.append(rows)
            np.add.at(self.bounded, rows.columns.mesh, 1)
            known = first[some], floors[some]
            self._judge_best(rows, self._alive(rows, wanted), wanted, least, known)
            return np.full(len(some), np.inf)

        floors = space.steps(columns, first)
        visit(floors, wanted.groups[columns.mesh], of_rows, wanted.limits, least=least, most=_ROWS_OF_EACH)

    def _with_chance(self, columns: Columns, wanted: Wanted) -> tuple[Bounded, Any]:
        """Return those of some rows that may fit by quick floors, with the first policies that may.

        These compute least again: each policy does what the ones before it do, and more. Rows without a
        chance are told if asked for.
        """
        rows = self.space.with_quick_floors(columns, self.memory.take(columns.mesh, axis=1))
        may_fit = likely = rows.may_fit(roomy=True)
        chance = likely.any(axis=0)
        if not wanted.roomy:
            # rows that may have their margin were looked at before
            may_fit = rows.may_fit(roomy=False)
            chance = may_fit.any(axis=0) & ~chance
        if not wanted.alone:
            never = np.flatnonzero(~rows.may_fit(roomy=False).any(axis=0) & ~self.told[columns.mesh])
            self.misfits.extend(rows.at(never).misfits())
        kept = np.flatnonzero(chance)
        return rows.at(kept), self._codes[may_fit.take(kept, axis=1).argmax(axis=0)]

    def _judge_best(
        self, rows: Bounded, alive: Any, wanted: Wanted, least: Any, known: tuple[Any, Any] | None = None
    ) -> None:
        """Judge those of some rows that may be the best of their groups.

        ``known`` are recompute policies, by their codes, with the rows' floors of steps under these.
        """
        likely = rows.may_fit(roomy=True)
        places = np.flatnonzero(alive & (likely.any(axis=0) == wanted.roomy))
        if not len(places):
            return
        groups = wanted.groups[rows.columns.mesh[places]]

        def least_steps(some: Any) -> Any:
            judged = self._judge(rows, places[some], wanted)
            return judged.least_steps(len(some), roomy=wanted.roomy)

        if len(places) <= _FEW:
            np.minimum.at(least, groups, least_steps(np.arange(len(places))))
            return
        fits = (likely if wanted.roomy else rows.may_fit(roomy=False)).take(places, axis=1)
        codes = self._codes[fits.argmax(axis=0)]
        if known is None:
            floors = self.space.steps(rows.columns.at(places), codes)
        else:
            floors = known[1][places]
            again = np.flatnonzero(codes != known[0][places])
            if len(again):
                floors[again] = self.space.steps(rows.columns.at(places[again]), codes[again])
        visit(floors, groups, least_steps, wanted.limits, least=least)

    def _alive(self, rows: Bounded, wanted: Wanted) -> Any:
        """Return which rows may fit, and tell the others if asked and their meshes were not."""
        if wanted.alone:
            return rows.able()
        alive, told = np.ones(len(rows.columns.mesh), dtype=bool), self.told[rows.columns.mesh]
        for entry in rows.misfits():
            alive[entry.rows] = False
            untold = ~told[entry.rows]
            if untold.any():
                self.misfits.append(entry.chosen(untold))
        return alive

    @property
    def seen(self) -> Any:
        """Of each mesh, whether all of its rows were bounded."""
        return self.bounded == self.space.allowed.counts

    @property
    def _codes(self) -> Any:
        """The recompute policies that are compared."""
        return np.array([code_of(policy) for policy in policies(self.space.fixed)])

    def _judge(self, rows: Bounded, places: Any, wanted: Wanted) -> Judged:
        if not wanted.alone:
            self.plans.append(int(option_counts(rows.space.fixed, rows.columns.at(places)).sum()))
        self.judged.append(judge(rows, places, alone=wanted.alone))
        return self.judged[-1]


def nothing_of(space: Searched) -> Visited:
    """Return what is found of a space before it is visited."""
    memory = space.memory_of_meshes()
    meshes = memory.shape[1]
    told, bounded = np.zeros(meshes, dtype=bool), np.zeros(meshes, dtype=np.int64)
    return Visited(space=space, memory=memory, told=told, bounded=bounded)
