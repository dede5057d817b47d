"""What plans choose apart from their sizes, drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.plan import Backend, Offload, Recompute, Shard
from parastrat.workload import Precision

if TYPE_CHECKING:
    import random


def choices(draw: random.Random) -> dict[str, Any]:
    """Return fields of a plan, with or without a pipeline."""
    return {
        "precision": Precision.BF16_MIXED,
        "backend": Backend.NCCL,
        "shard": draw.choice(tuple(Shard)),
        "reshard_after_forward": draw.choice((True, False)),
        "sequence_parallel": draw.choice((True, False)),
        "loss_parallel": draw.choice((True, False)),
        "recompute": draw.choice(tuple(Recompute)),
        "offload": draw.choice(tuple(Offload)),
    }
