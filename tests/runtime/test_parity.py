"""Training under every strategy gives the losses of one process in plain torch."""

from __future__ import annotations

import pytest
from runtime.ranks import on_ranks
from runtime.training import (
    FEW,
    MODELS,
    STRATEGIES,
    TOLERANCE,
    VARIANTS,
    Losses,
    alone,
    every_cell,
    has_variants,
    models_of,
    steps_of,
)

from parastrat.workload import Precision

pytestmark = [pytest.mark.slow, pytest.mark.always]

CELLS = [
    (world, strategy, model, variant)
    for world, strategies in STRATEGIES.items()
    for strategy in strategies
    for model, variant in (
        *((model, "fp32") for model in models_of(world, strategy)),
        ("gpt", "broken"),
        *(("gpt", variant) for variant in VARIANTS if has_variants(world, strategy)),
    )
]


@pytest.fixture(scope="module")
def trained() -> dict[int, Losses]:
    return {world: on_ranks(world, every_cell, world)[0] for world in STRATEGIES}


@pytest.fixture(scope="module")
def references() -> dict[tuple[str, str], list[float]]:
    fp32 = {(name, "fp32"): alone(name) for name in MODELS}
    short = {("gpt", p.value): alone("gpt", p) for p in (Precision.BF16_MIXED, Precision.FP16_MIXED)}
    return fp32 | short


@pytest.mark.parametrize(("world", "strategy", "model", "variant"), CELLS)
def test_losses_are_those_of_one_process(
    world: int,
    strategy: str,
    model: str,
    variant: str,
    trained: dict[int, Losses],
    references: dict[tuple[str, str], list[float]],
) -> None:
    losses = trained[world][strategy, model, variant]
    assert len(losses) == (steps_of(world, strategy, model) if variant == "fp32" else FEW)
    short = variant in {"bf16-mixed", "fp16-mixed"}
    reference = references[model, variant if short else "fp32"]
    apart = max(abs(loss - expected) for loss, expected in zip(losses, reference, strict=False))
    if variant == "broken":
        assert apart > 100 * TOLERANCE
    elif short:
        rounding = max(abs(a - b) for a, b in zip(reference, references[model, "fp32"], strict=True))
        assert apart <= max(3 * rounding, 1e-3)
    else:
        assert apart <= TOLERANCE
