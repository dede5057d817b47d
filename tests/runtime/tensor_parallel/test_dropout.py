"""Dropout is alike where the ranks compute the same, and different where they divide."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan, token_loss, tokens
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor

import parastrat
from parastrat.plan import Recompute
from parastrat.runtime.tensor_parallel.dropout import drops, without_dropout

pytestmark = pytest.mark.slow


class Block(nn.Module):
    """Dropout inside of the divided pair, and behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)
        self.inner, self.outer = nn.Dropout(0.5), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(self.second(self.inner(self.first(x))))


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 61)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def trained(recompute: Recompute) -> tuple[list[float], list[float], list[torch.Tensor]]:
    """Losses, sums of whole weights as this rank has them, and what the first forward dropped."""
    torch.manual_seed(0)
    built = Dropping()
    seen: list[torch.Tensor] = []
    for block in built.blocks:
        for part in (block.inner, block.outer):
            part.register_forward_hook(lambda _m, _a, output: seen.append(output == 0))
    model = parastrat.auto_parallelize(built, plan=plan(tp=2, recompute=recompute))
    seen.clear()  # the proof's copy has the hooks too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        torch.manual_seed(100 * dist.get_rank() + step)  # the ranks' generators differ
        x, y = tokens(step, 2)
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=token_loss).item())
        optimizer.step()
        optimizer.zero_grad()
    held = [
        p.data
        for p in model.parameters()
        if isinstance(p.data, DTensor) and p.data.placements[0].is_replicate()
    ]
    return losses, [float(tensor.to_local().sum()) for tensor in held], seen[:4]


def on_two() -> dict[str, Any]:
    torch.manual_seed(1)
    found = {policy.value: trained(policy) for policy in (Recompute.NONE, Recompute.FULL)}
    dist.barrier()
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return on_ranks(2, on_two)


def test_whole_activations_drop_alike_and_divided_ones_do_not(found: list[dict[str, Any]]) -> None:
    (first, second) = (rank["none"][2] for rank in found)
    for index in (0, 2):
        assert not torch.equal(first[index], second[index])
    for index in (1, 3):
        assert torch.equal(first[index], second[index])
    assert not torch.equal(first[0], first[2])
    assert not torch.equal(first[1], first[3])


def test_the_ranks_train_one_model(found: list[dict[str, Any]]) -> None:
    for policy in ("none", "full"):
        assert found[0][policy][0] == found[1][policy][0]
        assert found[0][policy][1] == found[1][policy][1]
        assert found[0][policy][1]


def test_recomputed_forwards_drop_what_the_first_did(found: list[dict[str, Any]]) -> None:
    assert found[0]["full"][0] == pytest.approx(found[0]["none"][0], abs=1e-6)
    assert found[0]["full"][1] == pytest.approx(found[0]["none"][1], abs=1e-5)


def test_rates_are_found_and_set_to_zero() -> None:
    model = Dropping()
    assert drops(model)
    without_dropout(model)
    assert not drops(model)
    assert not drops(nn.Linear(2, 2))
