"""Divided weights among whole values: penalties in a loss are right where each term is whole.

Otherwise they are refused in one message, and in another where a forward reads weights too early.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

PLANS: dict[str, Plan] = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2, micro_batch_size=4),
}
X, Y = torch.linspace(-1, 1, 32).view(4, 8), torch.linspace(1, -1, 16).view(4, 4)


def bare(term: torch.Tensor) -> torch.Tensor:
    return term


def whole(term: torch.Tensor) -> torch.Tensor:
    return term.full_tensor() if isinstance(term, DTensor) else term


def trained(chosen: Plan | None, each: Callable[[torch.Tensor], torch.Tensor]) -> float:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 4))

    def loss_fn(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        penalty = sum(each(parameter.pow(2).sum()) for parameter in model.parameters())
        return functional.mse_loss(output, targets) + 0.1 * penalty

    x, y = X, Y
    if chosen is not None:
        model = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=X[:1])
        own = slice(2 * torch.distributed.get_rank(), None) if chosen.mesh.dp > 1 else slice(None)
        x, y = X[own][: chosen.micro_batch_size], Y[own][: chosen.micro_batch_size]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        if chosen is None:
            loss_fn(model(x), y).backward()
        else:
            parastrat.forward_backward(model, x, y, loss_fn=loss_fn)
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return float(model(X).pow(2).sum())


class Outside(nn.Module):
    """A model that runs a part of its first block beside the blocks, as diffusers' DiT does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside = self.blocks[0].up(x).mean(-1, keepdim=True)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x + beside)
        return result


def outside() -> float:
    model = parastrat.auto_parallelize(Outside(), plan=PLANS["fsdp2"], sample_inputs=X[:1])
    return float(parastrat.forward_backward(model, X[:2], Y[:2], loss_fn=functional.mse_loss))


def everything() -> dict[str, Any]:
    asked = {
        f"{each.__name__} {name}": partial(trained, chosen, each)
        for each in (whole, bare)
        for name, chosen in PLANS.items()
    }
    return answers({**asked, "outside": outside})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_terms_that_are_whole(ranks: list[dict[str, Any]]) -> None:
    expected = trained(None, bare)
    for found in ranks:
        for name in PLANS:
            assert found[f"whole {name}"] == pytest.approx(expected, rel=1e-4), name


def test_terms_that_are_divided(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert isinstance(found["bare ddp"], float)
        for name in ("fsdp2", "tp"):
            assert "the loss adds values of parameters" in str(found[f"bare {name}"])


def test_a_part_of_a_block_that_runs_outside_of_it_is_no_penalty(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "blocks.0.up runs outside of its block's forward" in str(found["outside"])
