"""The longest of the halves of a sequence that a job fits."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

from parastrat.ranks.states import least_bytes, may_fit
from parastrat.search.changes import Fit, halved, halvings
from parastrat.search.fastest import able_space, any_fits, fastest_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case, Facts
    from parastrat.plan import Offload
    from parastrat.search.changes import Changed, ModelAt
    from parastrat.search.rows import Constraints

#: more halvings than are tried
_OFTEN = 99


def longest_fitting(
    job: Changed, model_at: ModelAt | None, fixed: Constraints, misfits: Sequence[Case]
) -> Fit | None:
    """Return the fastest plan at the longest of the halves of a sequence that one fits.

    What fits a sequence fits its half: there is the same plan, with the same micro-batch of shorter
    sequences. So most lengths beside one that fits and one that does not are never searched.

    Args:
        job: what is changed.
        model_at: the model at another length.
        fixed: what the user settled.
        misfits: plans that come near to fitting before the change. They tell which length is tried first.
    """
    most = halvings(job, model_at)
    if model_at is None or not most:
        return None
    # what is longer is known not to fit, and what is shorter to fit
    longer, shorter, found = 0, most + 1, None
    times = min(_halvings_to_fit(job.facts, fixed.offload, misfits), most)
    # where the shortest does not fit, none does
    first = iter((times, times + 1, most))
    while shorter - longer > 1:
        # beside the first guess the next longer one most likely does not fit
        halfway = shorter - 1 if shorter == times else (longer + shorter) // 2
        now = next(first) if found is None else halfway
        changed = halved(job, model_at, now)
        space = able_space(changed.facts, fixed) if may_fit(changed.facts, fixed.offload) else None
        if space is not None and any_fits(space):
            shorter, found = now, space
        else:
            longer = now
    if found is None:
        return None
    changed, plan = halved(job, model_at, shorter), fastest_of(found)
    return None if plan is None else Fit(changes=changed.changes, facts=found.facts, plan=plan)


def _halvings_to_fit(facts: Facts, offload: Offload, misfits: Sequence[Case]) -> int:
    """Return how often to halve a sequence until one of some plans may fit, by a rough guess.

    That is if activations and what is transient halve, and states grow or shrink with an even share of
    them. Once where there are no plans on as many devices; and often where the rest alone does not fit.
    """
    share, capacity = least_bytes(facts, offload), facts.hardware.device.usable_memory_bytes
    times = []
    for case in misfits:
        if case.plan.mesh.world_size != facts.hardware.world_size:
            continue
        memory = case.estimate.memory
        states = memory.parameters + memory.gradients + memory.optimizer
        stays = states * share / least_bytes(case.facts, offload) + memory.overhead
        halves, room = memory.activations + memory.transient, capacity - memory.margin - stays
        times.append(ceil(log2(max(halves / room, 2))) if room > 0 else _OFTEN)
    return min(times, default=1)
