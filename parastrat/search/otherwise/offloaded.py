"""What offloading states to host memory would give, where the memory that it frees makes plans faster."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parastrat.assess import assess
from parastrat.plan import Offload
from parastrat.search.best_first import mattering
from parastrat.search.bounded import searched
from parastrat.search.fastest import fastest_of
from parastrat.search.obeying import obeying, offloading
from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.bounded import Searched
    from parastrat.search.rows import Constraints


def offloaded_plan(facts: Facts, fixed: Constraints, chosen: Case | None, tolerance: float) -> Case | None:
    """Return the faster of the recommendations with the optimizer and with the parameters offloaded.

    None where neither is faster by the tolerance, where nothing is known of the way to host memory, or
    where the user settled what is offloaded, or wants what ``auto_parallelize`` applies, which no such plan
    is.

    Args:
        facts: the job.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended; None where nothing can run, of which nearest fits tell more.
        tolerance: as ``find_plan`` took it.
    """
    settled = fixed.offload is not Offload.NONE or fixed.applied
    if chosen is None or settled or facts.hardware.device.host_bytes_per_s is None:
        return None
    enough, allowed = chosen.estimate.time.step / (1 + tolerance), obeying(facts, fixed)
    if not len(allowed.meshes.pp):
        # what was chosen leaves all devices but one idle
        return None
    space = _within(searched(facts, fixed, allowed), enough)
    # offloading costs time: no plan is faster than the fastest without a limit of memory
    if not _is_enough(replace(space, limited=False), enough):
        return None
    others = []
    for offload in (Offload.OPTIMIZER, Offload.PARAMETERS):
        changed = replace(fixed, offload=offload)
        if _is_enough(replace(space, fixed=changed, allowed=offloading(space.allowed, offload)), enough):
            others.append(recommendation(facts, changed, tolerance=tolerance))
    fast = (other for other in others if other is not None and other.estimate.time.step <= enough)
    return min(fast, key=lambda other: other.estimate.time.step, default=None)


def _within(space: Searched, seconds: float) -> Searched:
    """Return a space without the meshes of which no plan has a step of at most so many seconds."""
    allowed, every = space.allowed, np.arange(len(space.allowed.meshes.pp))
    floors = space.steps_of_meshes(every)
    likely = mattering(floors, np.zeros_like(every), np.array([seconds]))
    return replace(space, allowed=replace(allowed, meshes=allowed.meshes.at(likely)))


def _is_enough(space: Searched, enough: float) -> bool:
    """Return whether the fastest plan of a space has a step of at most so many seconds."""
    plan = fastest_of(space, within=enough)
    return plan is not None and assess(space.facts, plan).estimate.time.step <= enough
