"""What less memory costs in time: the fastest plan, then the fastest of those that need less, and so on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.assess import assess
from parastrat.search.bounded import searched
from parastrat.search.fastest import fastest_of
from parastrat.search.obeying import obeying

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints

#: each plan of a front needs less than the one before by at least this share
APART = 0.05


def memory_front(facts: Facts, fixed: Constraints, *, apart: float = APART) -> tuple[Case, ...]:
    """Return the plans that no other beats in both memory and time, the fastest first.

    Of plans that need about as much, within the share ``apart``, the fastest stands for all; of plans as
    fast, within 0.5 %, the simplest, as everywhere. Empty where nothing fits.
    """
    found: list[Case] = []
    space = searched(facts, fixed, obeying(facts, fixed))
    while (plan := fastest_of(space)) is not None:
        found.append(assess(facts, plan))
        limit = int((1 - apart) * found[-1].estimate.memory.total)
        space = replace(space, facts=_limited(facts, limit))
    # a plan that is simpler than a faster one may be slower than what needs less
    steps = [case.estimate.time.step for case in found]
    return tuple(case for at, case in enumerate(found) if all(steps[at] < step for step in steps[at + 1 :]))


def _limited(facts: Facts, limit: int) -> Facts:
    """Return a job whose plans need so many bytes at most; their margin is beyond that, of what fits."""
    hardware = facts.hardware
    device = replace(hardware.device, usable_memory_bytes=limit)
    return replace(
        facts,
        hardware=replace(hardware, device=device),
        stack=replace(facts.stack, memory_margin=0.0),
    )
