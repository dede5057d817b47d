"""Parameters that are written otherwise than by a step of torch's optimizers: right, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.plan import Plan
from parastrat.runtime.training.writes import look_at

pytestmark = pytest.mark.slow

PLANS = {"ddp": plan(dp_replicate=2), "fsdp2": plan(dp_shard=2), "tp": plan(tp=2)}

STEPPING = partial(torch.optim.SGD, lr=0.5)


class Bounded(Block):
    """Keeps its weights between bounds."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.down.weight.clamp_(-0.1, 0.1)
        return super().forward(x)


class FromTheFirst(Block):
    """Takes a scale from its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.known = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.known:
            self.scale.data.copy_(1 / x.detach().std(0))
            self.known = True
        return super().forward(x * self.scale)


class Tempered(Block):
    """Bounds a parameter without a dimension, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.temperature.data.clamp_(max=1.0)
        return super().forward(x) * self.temperature


class Pair(nn.Module):
    """A network and its average over time, which gives the targets."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Sequential(Block(), Block())
        self.mean = copy.deepcopy(self.own).requires_grad_(False)

    @torch.no_grad()
    def follow(self) -> None:
        for mean, own in zip(self.mean.parameters(), self.own.parameters(), strict=True):
            mean.data.mul_(0.9).add_(own.data, alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.follow()
        with torch.no_grad():
            targets = self.mean(x) * 0.5
        return self.own(x) - targets


class Assigning(torch.optim.Optimizer):
    """Steps as many older ones do."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.data = parameter.data - 0.5 * parameter.grad


def stacked(kind: type[nn.Module]) -> nn.Module:
    return nn.Sequential(kind(), kind(), nn.Linear(8, 8))


def difference(
    build: Callable[[], nn.Module],
    chosen: Plan,
    optimizing: Callable[..., Any] = STEPPING,
) -> float:
    """By how much the weights differ after three steps from those of one process."""
    torch.manual_seed(0)
    plain, x = build(), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen, sample_inputs=x[:1])
    rank = torch.distributed.get_rank()
    own = x if chosen.mesh.tp > 1 else x[2 * rank : 2 * rank + 2]
    for model, samples in ((plain, x), (wrapped, own)):
        optimizer = optimizing(model.parameters())
        for _ in range(3):
            model(samples).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [each.full_tensor() if hasattr(each, "full_tensor") else each for each in wrapped.parameters()]
    pairs = zip(plain.parameters(), found, strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        f"{kind.__name__} {name}": partial(difference, partial(stacked, kind), PLANS[name])
        for kind in (Bounded, Tempered)
        for name in ("ddp", "fsdp2")
    }
    asked["FromTheFirst fsdp2"] = partial(difference, partial(stacked, FromTheFirst), PLANS["fsdp2"])
    for name, chosen in PLANS.items():
        asked[f"assigned {name}"] = partial(difference, partial(stacked, Block), chosen, Assigning)
        if name != "tp":
            asked[f"pair {name}"] = partial(difference, Pair, chosen)
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_writes_to_gathered_weights(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["Bounded ddp"] < 1e-6
        for name in ("Bounded", "FromTheFirst"):
            assert "which FSDP2 has gathered for it: that is lost" in str(found[f"{name} fsdp2"])


def test_writes_to_parameters_without_a_dimension(ranks: list[dict[str, Any]]) -> None:
    assert all(found[f"Tempered {name}"] < 1e-6 for found in ranks for name in ("ddp", "fsdp2"))


def test_averages_that_a_model_holds_itself(ranks: list[dict[str, Any]]) -> None:
    assert all(found[f"pair {name}"] < 1e-6 for found in ranks for name in ("ddp", "fsdp2"))


def test_optimizers_that_assign_data(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["assigned ddp"] < 1e-6
        for name in ("fsdp2", "tp"):
            assert "something was assigned to .data" in str(found[f"assigned {name}"])


def test_numbers_of_double_precision_are_looked_at() -> None:
    layer = nn.Linear(2, 2).double()
    nn.init.ones_(layer.weight)
    assert look_at((layer, "weight"), values=True).norm == 2.0
