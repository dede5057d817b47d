"""torch's own clipping takes the norm over all stages, as one process does."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from drawn import drawn
from runtime.models import plan
from runtime.pipeline.stages import several
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule, Plan

pytestmark = pytest.mark.slow

FEATURES = 16
BATCH = 8
HALVES = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
PLANS = {
    "pp": plan(gradient_accumulation_steps=4, **HALVES),
    "ZBV": plan(gradient_accumulation_steps=4, **several(PipelineSchedule.ZBV)),
    "pp x fsdp2": plan(gradient_accumulation_steps=2, dp_shard=2, **HALVES),
    "pp x tp": plan(gradient_accumulation_steps=4, tp=2, **HALVES),
}
ORDERS = (2.0, 1.0, math.inf)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 32), nn.Linear(32, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())  # type: ignore[no-any-return]


class Tied(nn.Module):
    """The first stage and the last hold one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, FEATURES)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(FEATURES, 11)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def model_of(chosen: Plan | None) -> nn.Module:
    torch.manual_seed(0)
    if chosen is None:
        return Tied()
    sample = torch.zeros(1, 4, dtype=torch.long)
    return parastrat.auto_parallelize(Tied(), plan=chosen, sample_inputs=sample)


def loss_of(output: torch.Tensor, aim: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), aim.flatten())


def backward(model: nn.Module, chosen: Plan | None, step: int) -> None:
    torch.manual_seed(step)
    x, y = (torch.randint(11, (BATCH, 4)) for _ in range(2))
    if chosen is None:
        loss_of(model(x), y).backward()
        return
    share, ranks = torch.distributed.get_rank() % chosen.mesh.dp, chosen.mesh.dp
    x, y = x.chunk(ranks)[share], y.chunk(ranks)[share]
    parastrat.forward_backward(model, x, y, loss_fn=loss_of)


def norms(chosen: Plan | None) -> list[float]:
    """Return the norms of some steps, each clipped to far less, by several orders and of some parts."""
    found: list[Any] = []
    model = model_of(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for step, order in enumerate(ORDERS):
        backward(model, chosen, step)
        found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5, norm_type=order))
        found.append(nn.utils.get_total_norm(_gradients(model), order))
        optimizer.step()
        optimizer.zero_grad()
    backward(model, chosen, len(ORDERS))
    # a part that one stage alone holds, of which the others have nothing
    found.append(nn.utils.clip_grad_norm_(model.get_submodule("blocks.3").parameters(), 0.1))
    found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    return [float(each.full_tensor() if hasattr(each, "full_tensor") else each) for each in found]


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("strategy", drawn(list(PLANS), 2))
def test_the_norm_is_that_of_one_process(strategy: str) -> None:
    expected = norms(None)
    for own in on_ranks(PLANS[strategy].mesh.world_size, norms, PLANS[strategy]):
        assert own == [pytest.approx(norm, rel=1e-4) for norm in expected]


def unusual() -> tuple[str, float]:
    """Ask for an error where one stage overflows; and clip what is of no pipeline on one rank alone."""
    chosen = PLANS["pp"]
    model = model_of(chosen)
    backward(model, chosen, 0)
    other = nn.Linear(2, 1)
    other.weight.grad = torch.full_like(other.weight, 3.0)
    alone = 0.0
    if torch.distributed.get_rank() == 0:
        alone = float(nn.utils.clip_grad_norm_(other.parameters(), 1.0))
        first = model.get_parameter("blocks.0.up.weight")
        assert first.grad is not None
        first.grad[0, 0] = torch.inf
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    except RuntimeError as error:
        return str(error), alone
    return "", alone


def test_an_infinite_norm_is_an_error_on_all_stages_where_asked() -> None:
    found = on_ranks(2, unusual)
    for message, _ in found:
        assert message.startswith("the norm of order 2.0 of the gradients of all ranks is inf")
    assert found[0][1] == pytest.approx(18**0.5)
