"""Tensor-parallel training gives the losses of one process in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
from drawn import drawn
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import ALL, OWN, trained
from runtime.training import FEW, TOLERANCE, alone

pytestmark = pytest.mark.slow

#: number of ranks -> strategies
STRATEGIES: dict[int, dict[str, dict[str, Any]]] = {
    2: {"tp": {"tp": 2}},
    4: {"fsdp2+tp": {"dp_shard": 2, "tp": 2}},
}
#: number of ranks -> models
TRAINED = {
    # benchmarks/parity.py trains as many families and more
    2: drawn([f"tp:{name}" for name in OWN], 2) + drawn(["gpt2", "bert", "vit"], 1),
    4: drawn(["tp:qwen3", "gpt2"], 1),
}
CELLS = [
    (world, strategy, model)
    for world, strategies in STRATEGIES.items()
    for strategy in strategies
    for model in TRAINED[world]
]


def every_cell(world: int) -> dict[tuple[str, str], tuple[list[float], float]]:
    return {
        (strategy, model): trained(model, STRATEGIES[world][strategy])
        for cell_world, strategy, model in CELLS
        if cell_world == world
    }


@pytest.fixture(scope="module")
def together() -> dict[int, list[Any]]:
    return {world: on_ranks(world, every_cell, world) for world in STRATEGIES}


@pytest.mark.parametrize(("world", "strategy", "model"), CELLS)
def test_losses_are_those_of_one_process(
    world: int, strategy: str, model: str, together: dict[int, list[Any]]
) -> None:
    every_rank = [rank[strategy, model] for rank in together[world]]
    reference = alone(model, models=ALL, steps=FEW)
    for losses, norm in every_rank:
        assert max(abs(a - b) for a, b in zip(losses, reference, strict=True)) <= TOLERANCE
        assert norm == pytest.approx(every_rank[0][1])
