"""What may be off about a stack: its constants that runs can correct, and how well each is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from parastrat.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """What may be fitted: fields of ``Stack`` that move together, and how well they are known."""

    name: str
    fields: tuple[str, ...] = ()
    #: one standard deviation, of the logarithm or of a share
    sigma: float
    is_share: bool = False
    #: whose rate it is, where it is one of ``Stack.device_rates``
    device: str | None = None

    def value(self, stack: Stack) -> float:
        """Return the constant in a stack."""
        if self.device is not None:
            return stack.rate_on(self.device)
        # of overlaps the last is told, which is that of sharded parameters
        return float(getattr(stack, self.fields[-1 if self.is_share else 0]))

    def moved(self, stack: Stack, sigmas: float) -> Stack:
        """Return a stack with the constant so many sigmas further; shares stay within 0 and 1."""
        if self.device is not None:
            rate = self.value(stack) * math.exp(sigmas * self.sigma)
            return replace(stack, device_rates=(*(dict(stack.device_rates) | {self.device: rate}).items(),))
        own = {field: float(getattr(stack, field)) for field in self.fields}
        moved: dict[str, Any] = {
            field: value * math.exp(sigmas * self.sigma) for field, value in own.items()
        }
        if self.is_share:
            moved = {field: min(1.0, max(0.0, value + sigmas * self.sigma)) for field, value in own.items()}
        return replace(stack, **moved)


#: what published runs identify. Sigmas: a kernel library differs by a few percent from another, curves of
#: attention are 7 to 11 % off single kernels (profiles/attention) and those of collectives 8 to 12 % off a
#: device left out (profiles/collectives), what a compiler or a framework adds in traffic may be a fifth
#: more or less; launches, counted, are 3.2, 4.6 and 5.0 of closed form in three eager models, whose
#: logarithms differ by 0.24; overlaps lie within 0.3 to 0.5 or 0.7 to 0.85 by how a stack shards
CONSTANTS = (
    Constant(name="matmul_factor", fields=("matmul_factor",), sigma=0.03),
    Constant(name="attention_factor", fields=("attention_factor",), sigma=0.1),
    Constant(name="elementwise_factor", fields=("elementwise_factor", "dispatched_factor"), sigma=0.2),
    Constant(
        name="launches_per_operator", fields=("launches_per_operator", "launches_per_dispatch"), sigma=0.24
    ),
    Constant(name="network_efficiency", fields=("network_efficiency",), sigma=0.1),
    Constant(
        name="overlap", fields=("dp_overlap", "zero_overlap", "fsdp_overlap"), sigma=0.1, is_share=True
    ),
)
#: and what only runs in fp8, of tensor parallelism or of experts do; assumed, experts' kernels least known
EVERY_CONSTANT = (
    *CONSTANTS,
    Constant(name="fp8_cast_bytes", fields=("fp8_cast_bytes",), sigma=0.35),
    Constant(name="tp_overlap", fields=("tp_overlap",), sigma=0.2, is_share=True),
    Constant(name="routed_traffic_factor", fields=("routed_traffic_factor",), sigma=0.5),
    Constant(name="launches_per_expert", fields=("launches_per_expert",), sigma=0.5),
    Constant(name="exchange_overlap", fields=("exchange_overlap",), sigma=0.2, is_share=True),
    Constant(name="grouped_factor", fields=("grouped_factor",), sigma=0.1),
)
#: logarithms of seven devices' factors of long runs, 1.10 to 1.25 (scripts/fit_matmul.py), differ by that
_RATE_SIGMA = 0.04


def rate_of(device: str) -> Constant:
    """Return the constant that a device's rate is."""
    return Constant(name=f"rate of {device}", sigma=_RATE_SIGMA, device=device)


def constants_of(stack: Stack, devices: Iterable[str] = ()) -> tuple[Constant, ...]:
    """Return the constants that published runs moved in a shipped stack, as its profile says.

    Where they moved none, those that are fitted to anyone's runs.

    Args:
        stack: whose.
        devices: of the runs that are to move them.
    """
    own = tuple(each for each in EVERY_CONSTANT if each.name in stack.fitted) or CONSTANTS
    return own + tuple(rate_of(each) for each in sorted(set(devices)) if stack.fits_device_rates)
