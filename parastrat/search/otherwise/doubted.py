"""What would be recommended if a network that nobody measured were slower or faster.

Rates between nodes are mostly derived: all-gathers and reduce-scatters over several nodes are hardly
published, and advice about sharding rests on them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.assess import assess
from parastrat.hardware import FigureKind, kind_of
from parastrat.result import Doubt, NetworkDoubt
from parastrat.search.recommended import recommendation

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.search.rows import Constraints

#: what the rate is multiplied with, one after the other
FACTORS = (0.5, 2.0)


def network_doubt(
    facts: Facts, fixed: Constraints, chosen: Case | None, tolerance: float
) -> NetworkDoubt | None:
    """Return the recommendations at half and double of the network's rate; None where they are no question.

    They are one where messages leave a scale-up domain, over links whose rate was not measured, and a plan
    fits.

    Args:
        facts: the job.
        fixed: what the user settled beforehand.
        chosen: the plan that is recommended.
        tolerance: as ``find_plan`` took it.
    """
    hardware, link = facts.hardware, facts.hardware.scale_out
    if chosen is None or link is None or hardware.world_size <= hardware.scale_up_devices:
        return None
    kind = kind_of(link.provenance, "bytes_per_s")
    if kind is FigureKind.MEASURED:
        return None
    doubts = []
    for factor in FACTORS:
        moved = replace(hardware, scale_out=replace(link, bytes_per_s=factor * link.bytes_per_s))
        there = replace(facts, hardware=moved)
        other = recommendation(there, fixed, tolerance=tolerance)
        # memory does not hang on it: what fits here fits there
        here = assess(there, chosen.plan)
        doubts.append(Doubt(factor=factor, chosen=here, other=other or here, tolerance=tolerance))
    return NetworkDoubt(kind=kind, bytes_per_s=link.bytes_per_s, doubts=tuple(doubts))
