"""The plan of each of several jobs, in one search where they differ in nodes and in where states are kept.

Memory and time do not hang on nodes that a plan leaves idle.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns
from parastrat.distinct import NUMBERED, distinct
from parastrat.search.bounded import searched
from parastrat.search.obeying import obeying
from parastrat.search.rows import plan_of_row, stacked
from parastrat.search.survey import best, in_order, near
from parastrat.search.visited import Wanted, nothing_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parastrat.case import Facts
    from parastrat.plan import Plan
    from parastrat.search.rows import Constraints
    from parastrat.search.visited import Visited
    from parastrat.search.work import Work

#: numbers of a job that hang on its nodes, or on where it keeps states
_OF_JOB = ("devices", "num_nodes", "backend", "offload")


def fastest_of_each(
    jobs: Sequence[Columns], widest: Facts, fixed: Constraints, work: Work | None = None
) -> tuple[Plan | None, ...]:
    """Return the fastest plan of each of some jobs that fits, with its margin where one does.

    Args:
        jobs: the meshes that may fit (``able_meshes``) of jobs that differ in the number of nodes, and in
            where states are kept.
        widest: the job on the most nodes.
        fixed: what the user settled beside that.
        work: of such a job on fewer nodes, which is told what its blocks take if that was found.
    """
    many, found = len(jobs), _searching(jobs, widest, fixed, work)
    if found is None:
        return (None,) * many
    fits = _visited(found, near)
    roomy = np.bincount(fits.job[fits.roomy], minlength=many) > 0
    if not roomy.all():

        def of_poor(least: Any) -> Any:
            return np.where(roomy[: len(least)], -np.inf, near(least))

        fits = _visited(found, of_poor, roomy=False)
    if work is not None:
        work.learn(found.space.work)
    has = np.bincount(fits.job, minlength=many) > 0
    return tuple(_fastest(fits, job) if has[job] else None for job in range(many))


def _searching(
    several: Sequence[Columns], widest: Facts, fixed: Constraints, beside: Work | None
) -> Visited | None:
    """Return what is found of jobs' meshes before they are visited; None where there are none."""
    meshes = _together(several)
    if not len(meshes.pp):
        return None
    allowed = obeying(widest, fixed, meshes, alone=True)
    allowed = replace(allowed, meshes=_numbered(allowed.meshes))
    space = searched(widest, fixed, allowed, once=True, beside=beside)
    return nothing_of(space)


def _visited(found: Visited, limits: Callable[[Any], Any], *, roomy: bool = True) -> Columns:
    """Visit all meshes, and return the plans that fit so far."""
    meshes = found.space.allowed.meshes
    wanted = Wanted(groups=meshes.job, limits=limits, roomy=roomy, alone=True)
    found.visit(np.arange(len(meshes.job)), wanted)
    return in_order([each.columns for each in found.judged], meshes)


def _fastest(fits: Columns, job: int) -> Plan:
    own = fits.job == job
    roomy = own & fits.roomy
    return plan_of_row(fits, best(fits, np.flatnonzero(roomy if roomy.any() else own)))


def _together(several: Sequence[Columns]) -> Columns:
    """Return the meshes of jobs, those of one behind those of another, with ``job``."""
    counts = [len(meshes.pp) for meshes in several]
    own = {name: [getattr(meshes, name) for meshes in several] for name in _OF_JOB}
    return stacked(several).joined(
        {
            "job": np.repeat(np.arange(len(several)), counts),
            **{name: np.repeat(each, counts) for name, each in own.items() if len(set(each)) > 1},
        }
    )


def _numbered(meshes: Columns) -> Columns:
    """Return meshes with numbers in common, where those of each job had their own."""
    shapes = Columns({name: getattr(meshes, name) for name in NUMBERED["mesh"]})
    numbers = {name: distinct(shapes, NUMBERED[name])[1] for name in ("width", "layout", "sharding")}
    return meshes.joined(numbers)
