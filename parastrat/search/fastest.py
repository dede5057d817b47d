"""The fastest plan of a space that fits, where nothing else is asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parastrat.memory.floors import mesh_floor
from parastrat.search.bounded import Bounded, bounded
from parastrat.search.obeying import Obeying, meshes_of, obeying
from parastrat.search.rows import plan_at
from parastrat.search.survey import best, in_order, near, visited

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.plan import Plan
    from parastrat.search.rows import Constraints


def fastest_plan(facts: Facts, fixed: Constraints) -> Plan | None:
    """Return the fastest plan that fits, with its margin where one does; None where none does."""
    meshes = meshes_of(facts, fixed)
    able = mesh_floor(facts, meshes) <= facts.hardware.device.usable_memory_bytes
    if not able.any():
        return None
    return fastest_of(bounded(facts, fixed, obeying(facts, fixed, meshes.at(np.flatnonzero(able)))))


def fastest_fitting(facts: Facts, fixed: Constraints, allowed: Obeying) -> Plan | None:
    """Return the same of the rows that rules leave of a space."""
    able = mesh_floor(facts, allowed.meshes) <= facts.hardware.device.usable_memory_bytes
    rows = np.flatnonzero(able[allowed.columns.mesh])
    if not len(rows):
        return None
    columns = allowed.columns if able.all() else allowed.columns.at(rows)
    return fastest_of(bounded(facts, fixed, replace(allowed, columns=columns)))


def fastest_of(rows: Bounded) -> Plan | None:
    """Return the fastest plan of some rows that fits, with its margin where one does."""
    together = np.zeros(len(rows.columns.pp), dtype=np.int64)
    found, waiting = visited(rows, (np.arange(len(together)), together), near, roomy=True)
    if not any(each.columns.roomy.any() for each in found):
        tight = np.flatnonzero(waiting & ~rows.removed)
        found += visited(rows, (tight, together), near, roomy=False)[0]
    fits = in_order([each.columns for each in found], rows.columns)
    able = np.flatnonzero(fits.roomy | ~fits.roomy.any())
    return plan_at(fits, best(fits, able)) if len(able) else None
