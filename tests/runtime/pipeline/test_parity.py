"""Training in stages gives the losses and gradients of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import token_loss, tokens
from runtime.pipeline.stages import on_two, seeded, trained, uneven_batch
from runtime.ranks import on_ranks
from runtime.training import FEW, GLOBAL_BATCH, TOLERANCE, alone
from torch import nn

pytestmark = pytest.mark.slow

SINGLE = [
    *(f"{name}-{schedule}" for name in ("gpt", "llama") for schedule in ("GPipe", "1F1B")),
    *(f"{name}-1F1B" for name in ("example", "gpt2", "bert", "vit")),
]


@pytest.fixture(scope="module")
def two() -> list[dict[str, Any]]:
    return on_ranks(2, on_two)


@pytest.mark.parametrize("cell", SINGLE)
def test_losses_are_those_of_one_process(cell: str, two: list[dict[str, Any]]) -> None:
    expected = alone(cell.partition("-")[0], steps=FEW)
    for rank in two:
        assert rank[cell] == pytest.approx(expected, abs=TOLERANCE, rel=0)


def test_a_callable_is_initialised_stage_by_stage_as_in_one_process(two: list[dict[str, Any]]) -> None:
    expected = trained("gpt", {}, meta=True)
    assert abs(expected[0] - two[0]["gpt-1F1B"][0]) > TOLERANCE  # other draws than the constructor's
    for rank in two:
        assert rank["meta"] == pytest.approx(expected, abs=TOLERANCE, rel=0)


@pytest.mark.parametrize("samples", [8, 5])
def test_uneven_targets_count_once_each(samples: int, two: list[dict[str, Any]]) -> None:
    expected = uneven_alone(samples)
    for rank in two:
        for (loss, norm), (expected_loss, expected_norm) in zip(
            rank[f"uneven-{samples}"], expected, strict=True
        ):
            assert loss == pytest.approx(expected_loss, abs=TOLERANCE)
            assert norm == pytest.approx(expected_norm, rel=1e-4)


def uneven_alone(samples: int) -> list[tuple[float, float]]:
    model = seeded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for step in range(3):
        x, y = uneven_batch(step, samples)
        loss = token_loss(model(x), y)
        loss.backward()
        found.append((loss.item(), nn.utils.clip_grad_norm_(model.parameters(), 1e-2).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_gradients_of_several_steps_add_up_where_stages_share_a_weight(two: list[dict[str, Any]]) -> None:
    assert all(rank["added up"] < 1e-5 for rank in two)


def test_gradients_are_those_of_one_process(two: list[dict[str, Any]]) -> None:
    model = seeded()
    x, y = tokens(0, GLOBAL_BATCH)
    token_loss(model(x), y).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    held = [rank["gradients"] for rank in two]
    assert held[0].keys() | held[1].keys() == expected.keys()
    assert held[0].keys() & held[1].keys() == {"embed.weight"}
    for gradients in held:
        for name, gradient in gradients.items():
            apart = (gradient - expected[name]).norm() / expected[name].norm()
            assert apart < 1e-4, name
