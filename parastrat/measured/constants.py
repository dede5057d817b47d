"""What may be off about a stack: its constants that runs can correct, and how well each is known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """What may be fitted: fields of ``Stack`` that move together, and how well they are known."""

    name: str
    fields: tuple[str, ...]
    #: one standard deviation, of the logarithm or of a share
    sigma: float
    is_share: bool = False

    def moved(self, stack: Stack, sigmas: float) -> dict[str, float]:
        """Return the fields so many sigmas further than they are in a stack; shares stay within 0 and 1."""
        own = {field: float(getattr(stack, field)) for field in self.fields}
        if self.is_share:
            return {field: min(1.0, max(0.0, value + sigmas * self.sigma)) for field, value in own.items()}
        return {field: value * math.exp(sigmas * self.sigma) for field, value in own.items()}


#: what published runs identify. Sigmas: a kernel library differs by a few percent from another, attention's
#: curves are 7 to 11 % off single kernels (profiles/attention), what a compiler or a framework adds in
#: traffic may be a fifth more or less; launches, counted, are 3.2, 4.6 and 5.0 of closed form in three
#: eager models, whose logarithms differ by 0.24; overlaps lie within 0.3 to 0.5 or 0.7 to 0.85 by how a
#: stack shards
CONSTANTS = (
    Constant(name="matmul_factor", fields=("matmul_factor",), sigma=0.05),
    Constant(name="attention_factor", fields=("attention_factor",), sigma=0.1),
    Constant(name="elementwise_factor", fields=("elementwise_factor",), sigma=0.2),
    Constant(
        name="launches_per_operator", fields=("launches_per_operator", "launches_per_dispatch"), sigma=0.24
    ),
    Constant(name="network_efficiency", fields=("network_efficiency",), sigma=0.15),
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


def constants_of(stack: Stack) -> tuple[Constant, ...]:
    """Return the constants that published runs moved in a shipped stack, by its ``fitted``.

    Where they moved none, those that are fitted to anyone's runs.
    """
    return tuple(each for each in EVERY_CONSTANT if each.name in stack.fitted) or CONSTANTS
