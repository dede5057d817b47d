"""The first of several jobs that has a plan which fits, found in one search where they differ in nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns
from parastrat.distinct import NUMBERED, distinct
from parastrat.search.bounded import searched
from parastrat.search.fastest import able_meshes
from parastrat.search.obeying import obeying
from parastrat.search.rows import plan_at, stacked
from parastrat.search.survey import best, in_order, near
from parastrat.search.visited import Wanted, nothing_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.plan import Plan
    from parastrat.search.rows import Constraints


def first_fitting(jobs: Sequence[Facts], fixed: Constraints) -> tuple[int, Plan] | None:
    """Return the place of the first of some jobs that has a plan which fits, with its fastest one.

    Args:
        jobs: that differ in the number of nodes alone, of several at least, the fewest first. Memory and
            time do not hang on nodes that a plan leaves idle, so that one search does for all.
        fixed: what the user settled.
    """
    meshes = _together(jobs, fixed)
    if not len(meshes.pp):
        return None
    allowed = obeying(jobs[-1], fixed, meshes, alone=True)
    space = searched(jobs[-1], fixed, replace(allowed, meshes=_numbered(allowed.meshes)), once=True)
    wanted = Wanted(groups=space.allowed.meshes.job, limits=_of_first, alone=True)
    every, found = np.arange(len(wanted.groups)), nothing_of(space)
    found.visit(every, wanted)
    fits = in_order([each.columns for each in found.judged], space.allowed.meshes)
    if np.min(fits.job[fits.roomy], initial=len(jobs)) > 0:
        # a job before may have plans without their margin
        found.visit(every, replace(wanted, roomy=False))
        fits = in_order([each.columns for each in found.judged], space.allowed.meshes)
    if not len(fits.job):
        return None
    first = int(fits.job.min())
    own = fits.job == first
    roomy = own & fits.roomy
    return first, plan_at(fits, best(fits, np.flatnonzero(roomy if roomy.any() else own)))


def _of_first(least: Any) -> Any:
    """Return the limits of jobs: behind the first that has a plan none matters."""
    has = least < np.inf
    return np.where(np.cumsum(has) - has > 0, -np.inf, near(least))


def _together(jobs: Sequence[Facts], fixed: Constraints) -> Columns:
    """Return the meshes of jobs that may fit, those of one behind those of another, with ``job``."""
    several = [able_meshes(facts, fixed) for facts in jobs]
    counts = [len(meshes.pp) for meshes in several]
    return stacked(several).joined(
        {
            "job": np.repeat(np.arange(len(jobs)), counts),
            "devices": np.repeat([facts.hardware.world_size for facts in jobs], counts),
            "num_nodes": np.repeat([facts.hardware.num_nodes for facts in jobs], counts),
        }
    )


def _numbered(meshes: Columns) -> Columns:
    """Return meshes with numbers in common, where those of each job had their own."""
    shapes = Columns({name: getattr(meshes, name) for name in NUMBERED["mesh"]})
    numbers = {name: distinct(shapes, NUMBERED[name])[1] for name in ("width", "layout", "sharding")}
    return meshes.joined(numbers)
