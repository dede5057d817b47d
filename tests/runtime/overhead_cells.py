"""One step recorded both ways, on several ranks."""

from __future__ import annotations

import sys
from pathlib import Path

Operators = list[tuple[str, int]]


def recorded(strategies: list[str]) -> dict[str, tuple[Operators, Operators]]:
    """Operators of a wrapped and a handwritten step, by strategy."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import overhead

    found = {}
    for strategy in strategies:
        pair = overhead.pair_of(strategy, sequence_length=16)
        for _ in range(3):  # DDP rebuilds its buckets after the first
            pair.wrapped(), pair.by_hand()
        found[strategy] = (overhead.operators_of(pair.wrapped), overhead.operators_of(pair.by_hand))
    return found
