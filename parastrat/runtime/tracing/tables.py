"""Tensors that a module makes when it runs, and holds from then on: they are there as buffers are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from parastrat.runtime.tracing.tracker import Tracker


def settle_tables(trackers: Sequence[Tracker]) -> None:
    """Take what is left behind every step, and as large for any number of samples, for constant.

    Tables of positions, or weights that are made of others once. What grows with the samples, as a cache of
    the last step's activations, ends when the next step replaces it.
    """
    common = Counter(_marks(trackers[0]))
    for tracker in trackers[1:]:
        common &= Counter(_marks(tracker))
    for tracker in trackers:
        wanted = common.copy()
        twins = Counter(segment.twin for segment in tracker.segments)
        for made, mark in zip(tracker.behind.left, _marks(tracker), strict=True):
            if wanted[mark]:
                wanted[mark] -= 1
                made.constant, made.kept = True, False
                # a block that did not run would have made its own
                tracker.behind.tables += made.bytes * (1 + twins[made.created])


def _marks(tracker: Tracker) -> list[tuple[int, int]]:
    return [(made.created, made.bytes) for made in tracker.behind.left]
