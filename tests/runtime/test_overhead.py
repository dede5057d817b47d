"""A wrapped step runs the operators and collectives of the same plan written by hand, and no others."""

from __future__ import annotations

import pytest
from drawn import drawn
from runtime.overhead_cells import recorded
from runtime.ranks import on_ranks

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("ranks", "strategies"),
    [(2, ["ddp", "fsdp2", *drawn(["tp", "pp"], 1)]), (4, drawn(["hsdp", "fsdp2+tp"], 1))],
)
def test_operators_are_those_of_the_handwritten_step(ranks: int, strategies: list[str]) -> None:
    for found in on_ranks(ranks, recorded, strategies):
        for strategy in strategies:
            wrapped, by_hand = found[strategy]
            assert wrapped == by_hand
            assert wrapped[1] >= 4, "collectives"
