"""One step recorded both ways, on several ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

Operators = list[tuple[str, int]]


def recorded(strategies: list[str]) -> dict[str, tuple[Any, Any]]:
    """What a wrapped and a handwritten step do, by strategy: their loss, and their operators.

    Of plans that divide more than samples and weights, collectives alone, in any order.
    """
    sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    import overhead

    found = {}
    for strategy in strategies:
        pair = overhead.pair_of(strategy, sequence_length=16)
        for _ in range(2):  # DDP rebuilds its buckets after the first
            losses = [round(step().item(), 4) for step in (pair.wrapped, pair.by_hand)]
        both = [overhead.recorded(step) for step in (pair.wrapped, pair.by_hand)]
        seen = [
            each.operators if strategy in overhead.OF_DATA else sorted(each.collectives) for each in both
        ]
        found[strategy] = tuple(
            (loss, len(each.collectives), operators)
            for loss, each, operators in zip(losses, both, seen, strict=True)
        )
    return found
