"""Of plans that do not fit those that come nearest to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.rules import rejection_masks
from parastrat.rules.host_memory import host_memory_is_too_small
from parastrat.rules.memory import does_not_fit
from parastrat.search.best_first import First, first_of_each, visit
from parastrat.search.judged import with_memory
from parastrat.search.obeying import Rejected, attributed
from parastrat.search.rows import plan_of_row
from parastrat.search.space import policies, recompute_columns, reshard_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.search.bounded import Bounded
    from parastrat.search.visited import Visited

#: meshes that are visited first, and plans of a rung of which nothing is known
_FIRST = First(of_each=200, of_all=1200)
_FIRST_OF_EACH = 12

#: of more rows those that need least are visited first
_SEVERAL = 300

#: rows that are judged without floors, or by quick ones
_HANDFUL = 100

#: the rules that tell that a plan does not fit
_OF_MEMORY = (does_not_fit, host_memory_is_too_small)


def nearest(found: Visited, empty: Any) -> dict[int, Plan]:
    """Return of each empty rung the plan that needs the least, of those that rules of memory removed.

    That which needs the least of all is the first.

    Meshes are visited in the order of their floors of memory, and of their rows each policy in that of its
    own.
    """
    space, plans = found.space, _Nearest()
    for entry in (entry for each in found.judged for entry in each.rejected):
        plans.keep(entry.chosen(empty[entry.columns.rung[entry.rows]]))
    if space.few:
        return plans.by_rung
    rungs, least = space.allowed.meshes.rung, np.full(len(empty), np.inf)
    for rung, (bytes_, _) in plans.needs.items():
        least[rung] = bytes_
    left = np.flatnonzero(empty[rungs])
    if not len(left):
        return plans.by_rung

    # meshes of which not all rows were visited
    waiting = np.zeros(len(rungs), dtype=bool)

    def every_row(chosen: Any) -> None:
        columns = space.allowed.rows(chosen)
        # floors of a handful would take longer than what they spare
        bound = space.without_floors if len(columns.mesh) <= _HANDFUL else space.with_quick_floors
        plans.visited(bound(columns), least)

    def of_meshes(some: Any) -> Any:
        chosen = left[some]
        if space.allowed.counts[chosen].sum() <= _SEVERAL:
            every_row(chosen)
        else:
            # mostly one of these is next to the nearest, and few other rows have a floor below; each time
            # some of them are judged, as meshes that these rule out are not looked at
            rows = space.least_rows(chosen)
            plans.few(rows, least)
            found.raise_to(rows)
            waiting[chosen] = True
        return np.full(len(some), np.inf)

    needs = found.needs(left)
    visit(needs, rungs[left], of_meshes, _itself, least=least, first=_FIRST)
    chosen = np.flatnonzero(waiting)
    near = chosen[found.needs(chosen) <= least[rungs[chosen]]]
    if len(near):
        every_row(near)
    return plans.by_rung


def _plans(rows: Bounded, chosen: Any) -> Columns:
    """Return the plans of some rows under one policy each, told by the place of its floor among all."""
    policy, row = np.divmod(chosen, len(rows.columns.mesh))
    options = reshard_columns(rows.columns.at(row).joined({"policy": policy}))
    several = policies(rows.space.fixed)
    return recompute_columns(
        options, {each: np.flatnonzero(options.policy == place) for place, each in enumerate(several)}
    )


def _near(rows: Bounded, left: Any, least: Any) -> tuple[Bounded, Any]:
    """Return the rows that may be nearer than what is known of their rungs, and what is left of them."""
    near = np.flatnonzero(rows.memory.min(axis=0) <= least[rows.columns.rung])
    return rows.at(near), left.take(near, axis=1)


def _itself(least: Any) -> Any:
    return least


def nearest_of(rejected: Sequence[Rejected]) -> dict[int, Plan]:
    """Return of each rung the plan that needs the least, of those that rules of memory removed."""
    plans = _Nearest()
    for entry in rejected:
        plans.keep(entry)
    return plans.by_rung


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nearest:
    """Of each rung the plan that needs the least so far."""

    plans: dict[int, Plan] = field(default_factory=dict)
    #: its bytes (``_needs``), and its place, by which equal ones are told apart
    needs: dict[int, tuple[float, int]] = field(default_factory=dict)

    @property
    def by_rung(self) -> dict[int, Plan]:
        """The plans by their rungs, that which needs the least first."""
        return {rung: self.plans[rung] for rung in sorted(self.plans, key=self.needs.__getitem__)}

    def few(self, rows: Bounded, least: Any, wanted: Any = None) -> Any:
        """Keep the nearest of a few plans of each rung; return which they are.

        They tell which of the others are worth to be looked at.

        Args:
            rows: with quick floors.
            least: what the nearest plan of every rung needs, which is kept.
            wanted: the rungs that are meant; all of them where it is not given.
        """
        floors, groups = rows.memory.ravel(), np.tile(rows.columns.rung, len(rows.memory))
        few = np.arange(len(groups)) if wanted is None else np.flatnonzero(wanted[groups])
        few = first_of_each(floors, groups, few, _FIRST_OF_EACH)
        if len(few):
            np.minimum.at(least, groups[few], self._judged(rows, few))
        return few

    def visited(self, rows: Bounded, least: Any) -> None:
        """Keep the nearest plans of some rows; ``rows`` and ``least`` as of ``few``."""
        left = rows.memory.copy()
        if len(rows.columns.mesh) > _SEVERAL:
            left.flat[self.few(rows, least, np.isinf(least))] = np.inf
        rows, left = _near(rows, left, least)
        if len(rows.columns.mesh) > _HANDFUL:
            left = np.maximum(left, rows.space.with_floors(rows.columns).memory)
        groups = np.tile(rows.columns.rung, len(left))
        visit(left.ravel(), groups, lambda some: self._judged(rows, some), _itself, least=least)

    def _judged(self, rows: Bounded, chosen: Any) -> Any:
        """Keep the nearest of some plans, and return what the nearest of their rungs need."""
        judged = with_memory(rows.space.facts, _plans(rows, chosen))
        _, rejected = attributed(judged, dict(rejection_masks(judged, rows.space.allowed.judged)))
        for entry in rejected:
            self.keep(entry)
        rungs = rows.columns.rung[chosen % len(rows.columns.mesh)]
        return np.array([self.needs.get(rung, (np.inf, 0))[0] for rung in rungs.tolist()])

    def keep(self, entry: Rejected) -> None:
        """Keep what comes nearer than what is known, of plans that a rule of memory removed."""
        if entry.rule not in _OF_MEMORY:
            return
        misfits = entry.columns.at(entry.rows)
        needs = _needs(misfits)
        order = np.lexsort((misfits.place, needs))
        for rung in sorted(set(misfits.rung.tolist())):
            row = int(order[np.argmax(misfits.rung[order] == rung)])
            key = (float(needs[row]), int(misfits.place[row]))
            if rung not in self.needs or key < self.needs[rung]:
                self.needs[rung], self.plans[rung] = key, plan_of_row(misfits, row)


def _needs(misfits: Columns) -> Any:
    """Return what plans need of a device, so many times more as they need more of a host than it has.

    That is ``excess`` of their cases in bytes of a device: no floor of its memory lies above.
    """
    needs = np.maximum(misfits.memory_total, misfits.memory_capacity)
    if not misfits.has("host_needed"):
        return needs
    return needs * np.maximum(1.0, misfits.host_needed / misfits.host_capacity)
