"""The plans of a space that may be the best of their groups, found without judging all of it.

Meshes are visited in the order of a floor of their step, and of those their rows, with micro-batch and
schedule, in the order of a higher one; what has a floor above what was found is left out. So is what has a
floor of memory that does not fit. Of few meshes all rows are put in order at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.search.best_first import mattering, visit
from parastrat.search.judged import Judged, judge
from parastrat.search.space import option_counts, policies

if TYPE_CHECKING:
    from parastrat.search.bounded import Bounded, Searched
    from parastrat.search.obeying import Rejected

#: of more rows meshes are put in order first
_MANY = 2500
#: meshes of a group whose rows are put in order first, at most
_MOST_OF_EACH = 80
#: rows that are judged sooner than put in order
_FEW = 72


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The best plans that a search is for."""

    #: the group of every mesh of the space, counted from 0
    groups: Any
    #: from the least step of every group what a floor must not exceed to matter
    limits: Callable[[Any], Any]
    #: with the margin of memory; or those that fit without it alone
    roomy: bool = True
    #: whether the best is asked for alone, and not what speaks against others, so that all is judged as is
    #: soonest: few places are, without floors of their steps
    alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """What was found of a space so far."""

    space: Searched
    #: for each recompute policy, what each mesh needs at least: floors, raised to its rows' once known
    memory: Any
    #: of each mesh, whether what floors of memory leave out of it was told
    told: Any
    #: of each mesh, whether all of its rows were bounded; these
    seen: Any
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
                bound = space.with_floors if wanted.alone else space.without_floors
                rows = bound(space.allowed.rows(meshes))
                places = np.flatnonzero(rows.may_fit(roomy=False).any(axis=0))
                if len(places):
                    self._judge(rows, places)
            return
        meshes = self._fitting(meshes, wanted)
        if wanted.alone and self.raised(meshes):
            meshes = self._fitting(meshes, wanted)
        least = np.full(int(wanted.groups.max(initial=-1)) + 1, np.inf)
        if space.allowed.counts[meshes].sum() <= _MANY:
            self._visit_rows(meshes, wanted, least)
            return

        def of_meshes(some: Any) -> Any:
            chosen = meshes[some]
            if self.raised(chosen):
                chosen = self._fitting(chosen, wanted)
            self._visit_rows(chosen, wanted, least)
            return np.full(len(some), np.inf)

        floors = space.steps_of_meshes(meshes)
        visit(floors, wanted.groups[meshes], of_meshes, wanted.limits, least=least, most=_MOST_OF_EACH)

    def _fitting(self, meshes: Any, wanted: Wanted) -> Any:
        """Return those of some meshes that may fit by their floors of memory, and tell the others."""
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

    def raised(self, meshes: Any) -> bool:
        """Raise the floors of some meshes if they have many rows; return whether they are."""
        if not self.space.limited or self.space.allowed.counts[meshes].sum() <= _MANY:
            return False
        self.raised_to_least(meshes)
        return True

    def raised_to_least(self, meshes: Any) -> Bounded:
        """Raise the floors of some meshes to those of their rows that need least, and return these rows."""
        rows = self.space.least_rows(meshes)
        self._raise(rows)
        return rows

    def _raise(self, rows: Bounded) -> None:
        """Raise the floors of meshes to the least of rows, which stand mesh after mesh."""
        first = np.flatnonzero(np.diff(rows.columns.mesh, prepend=-1))
        meshes, least = rows.columns.mesh[first], np.minimum.reduceat(rows.memory, first, axis=1)
        self.memory[:, meshes] = np.maximum(self.memory[:, meshes], least)

    def _visit_rows(self, meshes: Any, wanted: Wanted, least: Any) -> None:
        if not len(meshes):
            return
        space, columns = self.space, self.space.allowed.rows(meshes)
        codes = np.array([code_of(policy) for policy in policies(space.fixed)])
        if np.isfinite(least).any():
            # each policy computes again what the ones before it do, and more
            first = codes[self._may_fit(columns.mesh, wanted).argmax(axis=0)]
            steps = space.steps(columns, first)
            columns = columns.at(mattering(steps, wanted.groups[columns.mesh], wanted.limits(least)))
        rows = space.with_floors(columns)
        mesh = columns.mesh
        if len(mesh) == space.allowed.counts[meshes].sum():
            self._raise(rows)
            self.seen[meshes] = True
            self.rows.append(rows)
        alive = self._tell(rows, meshes)
        likely = rows.may_fit(roomy=True)
        places = np.flatnonzero(alive & (likely.any(axis=0) == wanted.roomy))
        if not len(places):
            return

        def least_steps(some: Any) -> Any:
            judged = self._judge(rows, places[some])
            return judged.least_steps(len(some), roomy=wanted.roomy)

        if wanted.alone and len(places) <= _FEW:
            np.minimum.at(least, wanted.groups[mesh[places]], least_steps(np.arange(len(places))))
            return
        fits = (likely if wanted.roomy else rows.may_fit(roomy=False)).take(places, axis=1)
        floors = space.steps(columns.at(places), codes[fits.argmax(axis=0)])
        visit(floors, wanted.groups[mesh[places]], least_steps, wanted.limits, least=least)

    def _tell(self, rows: Bounded, meshes: Any) -> Any:
        """Return which rows of some meshes may fit, and tell the others."""
        mesh = rows.columns.mesh
        alive, told = np.ones(len(mesh), dtype=bool), self.told[mesh]
        for entry in rows.misfits():
            alive[entry.rows] = False
            untold = ~told[entry.rows]
            if untold.any():
                self.misfits.append(entry.chosen(untold))
        self.told[meshes] = True
        return alive

    def _judge(self, rows: Bounded, places: Any) -> Judged:
        self.plans.append(int(option_counts(rows.space.fixed, rows.columns.at(places)).sum()))
        self.judged.append(judge(rows, places))
        return self.judged[-1]


def nothing_of(space: Searched) -> Visited:
    """Return what is found of a space before it is visited."""
    memory = space.memory_of_meshes()
    told, seen = np.zeros((2, memory.shape[1]), dtype=bool)
    return Visited(space=space, memory=memory, told=told, seen=seen)
