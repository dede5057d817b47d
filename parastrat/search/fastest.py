"""The fastest plan of a space that fits, where nothing else is asked."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.floors import mesh_floor
from parastrat.memory.host import host_floors
from parastrat.rules.host_memory import host_memory_is_too_small
from parastrat.search.bounded import Searched, searched
from parastrat.search.judged import Needed, needed_at_least, needed_by_first
from parastrat.search.meshes import meshes_of
from parastrat.search.obeying import obeying
from parastrat.search.rows import plan_of_row
from parastrat.search.survey import best, in_order, near
from parastrat.search.visited import Wanted, nothing_of

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.search.bounded import Bounded
    from parastrat.search.rows import Constraints

#: so few rows are judged sooner than bounded more closely
_FEW = 24
#: rows that are judged first where any that fits will do; then so many times as many
_FIRST, _GROWTH = 64, 16


def fastest_plan(facts: Facts, fixed: Constraints) -> Plan | None:
    """Return the fastest plan that fits, with its margin where one does; None where none does."""
    space = able_space(facts, fixed)
    return None if space is None else fastest_of(space)


def able_space(facts: Facts, fixed: Constraints) -> Searched | None:
    """Return the space of a job's meshes that may fit by their floors; None where none may."""
    meshes = able_meshes(facts, fixed)
    if not len(meshes.pp):
        return None
    return searched(facts, fixed, obeying(facts, fixed, meshes, alone=True), once=True)


def able_meshes(facts: Facts, fixed: Constraints) -> Columns:
    """Return a job's meshes that may fit by their floors, of those that some rules leave."""
    return _able(facts, meshes_of(facts, fixed, alone=True))


def able_part(space: Searched) -> Searched:
    """Return of a space the meshes that may fit by their floors; their blocks take what they do there."""
    return replace(space, allowed=replace(space.allowed, meshes=_able(space.facts, space.allowed.meshes)))


def _able(facts: Facts, meshes: Columns) -> Columns:
    """Return the meshes that may fit by their floors, on devices and hosts; they have the former then."""
    floors = mesh_floor(facts, meshes)
    able = floors <= facts.hardware.device.usable_memory_bytes
    on_hosts = host_floors(facts, meshes)
    if on_hosts:
        able &= ~host_memory_is_too_small.mask(meshes.joined(on_hosts))
    return meshes.joined({"mesh_floor": floors}).at(np.flatnonzero(able))


def all_rows(space: Searched) -> Bounded:
    """Return the rows of a space, with quick floors."""
    return space.with_quick_floors(space.allowed.columns)


def least_needed(rows: Bounded) -> Needed:
    """Return whether any plan of some rows fits, and what one needs that does; else the nearest to it.

    Where any fits, that with the least floor of its memory mostly does; else closer floors leave few.
    """
    least, rows = float(np.min(rows.memory, initial=inf)), _from_least(rows)
    if not len(rows.columns.pp):
        return Needed(least, fits=False)
    needed = needed_by_first(rows.at(np.zeros(1, dtype=np.int64)))
    if needed.fits:
        return needed
    if len(rows.columns.pp) > _FEW:
        closer = rows.space.with_floors(rows.columns)
        least, rows = float(closer.memory.min()), _from_least(closer)
    left, several, needs = np.arange(len(rows.columns.pp)), _FIRST, inf
    while len(left):
        now, left = left[:several], left[several:]
        needed = needed_at_least(rows.at(now))
        if needed.fits:
            return needed
        needs, several = min(needs, needed.size), several * _GROWTH
    # where nothing was judged no floor fits
    return Needed(needs if needs < inf else least, fits=False)


def _from_least(rows: Bounded) -> Bounded:
    """Return the rows that may fit, from the least floor of their memory on."""
    left = np.flatnonzero(rows.may_fit(roomy=False).any(axis=0))
    return rows.at(left[np.argsort(rows.memory.min(axis=0)[left], kind="stable")])


def fastest_of(space: Searched, *, within: float = inf, rows: Bounded | None = None) -> Plan | None:
    """Return the fastest plan of a space that fits, with its margin where one does.

    Args:
        space: what is searched.
        within: seconds of a step; where none is as fast, any slower plan or none is returned.
        rows: what ``all_rows`` returned of it, where it was asked before.
    """

    def limits(least: Any) -> Any:
        return np.minimum(near(least), within)

    groups = np.zeros(len(space.allowed.meshes.pp), dtype=np.int64)
    fits = fitting_of(space, Wanted(groups=groups, limits=limits, alone=True), rows)
    able = np.flatnonzero(fits.roomy | ~fits.roomy.any())
    return plan_of_row(fits, best(fits, able)) if len(able) else None


def fitting_of(space: Searched, wanted: Wanted, rows: Bounded | None = None) -> Columns:
    """Return the plans of a space that may be the best of their groups, and maybe others.

    They have their margin where a plan has it, of whatever group. ``rows`` as of ``fastest_of``.
    """
    meshes, found = np.arange(len(wanted.groups)), nothing_of(space, rows)
    found.visit(meshes, wanted)
    if not any(each.columns.roomy.any() for each in found.judged):
        found.visit(meshes, replace(wanted, roomy=False))
    return in_order([each.columns for each in found.judged], space.allowed.meshes)
