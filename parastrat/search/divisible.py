"""Global batches close to another that more data ranks divide."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.rules.divisors import divisors

if TYPE_CHECKING:
    from parastrat.case import Facts

#: a batch that differs by less than this share trains alike: papers' own batches ramp by more
CLOSE = 0.02


def more_divisible(batch: int, devices: int) -> int | None:
    """Return the multiple next to a batch of the devices, or of their largest divisor with one close by.

    None where that is the batch itself.
    """
    for degree in reversed(divisors(devices)):
        nearest = max(round(batch / degree), 1) * degree
        if abs(nearest - batch) <= CLOSE * batch:
            return nearest if nearest != batch else None
    return None


def with_divisible_batch(facts: Facts) -> Facts | None:
    """Return the job with the batch that ``more_divisible`` finds; None where it finds none."""
    workload = facts.workload
    batch = more_divisible(workload.global_batch_size, facts.hardware.world_size)
    return None if batch is None else replace(facts, workload=replace(workload, global_batch_size=batch))
