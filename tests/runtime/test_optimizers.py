"""Optimizers of torch on divided parameters: they step as on whole ones, or are refused by name."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

PLANS = {"fsdp2": plan(dp_shard=2), "tp": plan(tp=2)}
RIGHT = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "SGD")
REFUSED: dict[str, dict[str, bool]] = {
    "Adafactor": {},
    "Rprop": {},
    "SGD": {"fused": True},
    "Adagrad": {"fused": True},
}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


def difference(chosen: Plan, name: str, **settings: bool) -> float:
    """By how much the weights differ after three steps from those of one process."""
    torch.manual_seed(0)
    plain, x = Residual(), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen, sample_inputs=x[:1])
    rank = torch.distributed.get_rank()
    own = x if chosen.mesh.tp > 1 else x[2 * rank : 2 * rank + 2]
    for model, samples in ((plain, x), (wrapped, own)):
        optimizer = getattr(torch.optim, name)(model.parameters(), **settings)
        for _ in range(3):
            model(samples).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found: list[Any] = list(wrapped.parameters())
    pairs = zip(plain.parameters(), found, strict=True)
    return max(float((one - other.full_tensor()).detach().abs().max()) for one, other in pairs)


def everything() -> dict[str, float | str]:
    asked = {
        f"{name} {strategy}{' fused' if settings else ''}": partial(difference, chosen, name, **settings)
        for strategy, chosen in PLANS.items()
        for name, settings in (*((name, {}) for name in RIGHT), *REFUSED.items())
    }
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, float | str]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("strategy", PLANS)
def test_optimizers_of_divided_parameters(ranks: list[dict[str, float | str]], strategy: str) -> None:
    for found in ranks:
        for name in RIGHT:
            assert float(found[f"{name} {strategy}"]) < 1e-5, name
        for name, settings in REFUSED.items():
            said = str(found[f"{name} {strategy}{' fused' if settings else ''}"])
            assert "cannot step divided parameters" in said, name
