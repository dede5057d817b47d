"""The rung of the ladder that is stood on: the lowest that is not slower than the fastest by too much."""

from __future__ import annotations

from collections.abc import Mapping

#: share by which a lower rung may be slower and still be taken, unless the user says another
TOLERANCE = 0.05
#: of plans as near as this the simplest is taken, and their ratio is not worth a number
NEAR = 1.005


def lowest_near(steps: Mapping[int, float], tolerance: float = TOLERANCE) -> int:
    """Return the rung to stand on, of at least one.

    One device of several is taken only where it is faster than all of them together.

    Args:
        steps: seconds of the best plan's step, by rung.
        tolerance: share by which the rung that is taken may be slower than the fastest.
    """
    fastest = min(steps.values())
    return min(
        rung
        for rung, step in steps.items()
        if step <= (1 + tolerance) * fastest and not (rung == 0 and step > fastest)
    )
