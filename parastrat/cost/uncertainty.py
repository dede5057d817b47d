"""How far measured steps may be from predicted ones."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from parastrat.hardware import FigureKind

if TYPE_CHECKING:
    from parastrat.case import Facts

#: figures of a device on which a step's time rests
_RATE_FIELDS = ("sustained", "memory_bytes_per_s", "matmul", "launch_s")

#: ln of the factor by which a step may be off when a rate is assumed: that is known to a factor of two
ASSUMED_SPREAD = math.log(2)


def assumes_rates(facts: Facts) -> bool:
    """Return whether a rate of the device is assumed, not measured or derived."""
    return any(
        entry.kind is FigureKind.ASSUMED and entry.field.split(".")[0] in _RATE_FIELDS
        for entry in facts.hardware.device.provenance
    )


def time_spread(facts: Facts, *, assumes: bool = False) -> float:
    """Return the ln of the factor within which 80 % of measured steps lie.

    The stack's own spread; wider where a rate of the device is assumed, or plans are meant that rest on
    another rate that is (``assumes``).
    """
    of_stack = facts.stack.time_spread
    if facts.model.experts and facts.stack.time_spread_with_experts is not None:
        of_stack = facts.stack.time_spread_with_experts
    return math.hypot(of_stack, ASSUMED_SPREAD if assumes or assumes_rates(facts) else 0.0)
