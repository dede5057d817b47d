"""Backwards of plain loops that are more than one of a loss: right as on one device, or refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
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

DDP, FSDP2 = plan(dp_replicate=2), plan(dp_shard=2)
#: whether parameters ask for gradients: as they are given, and in each step
FLAGS = {
    "frozen": [True, False, False],
    "thawed": [False, True, True],
    "frozen later": [True, True, False, False, True],
    "thawed later": [False, False, True, True],
    "in turns": [True, False, True, False, True],
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)  # type: ignore[no-any-return]


class Scores(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Block(), Block(), nn.Linear(8, 1))


class Forces(nn.Module):
    """An energy and its gradient, as potentials of atoms give them."""

    def __init__(self) -> None:
        super().__init__()
        self.energy = Scores()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        energy = self.energy(x)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return torch.cat([energy, force], 1)


def on_inputs(model: nn.Module, x: torch.Tensor) -> None:
    """The penalty of a Wasserstein critic, alone with the loss that it is for."""
    x = x.clone().requires_grad_()
    scores = model(x)
    (slope,) = torch.autograd.grad(scores.sum(), x, create_graph=True)
    (scores.mean() + (slope.norm(dim=1) - 1).pow(2).mean()).backward()


def against(model: nn.Module, x: torch.Tensor) -> None:
    """A step on inputs that were moved along their gradient."""
    given = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(given).pow(2).sum(), given)
    model(x + 0.1 * slope.sign()).pow(2).mean().backward()


def plainly(model: nn.Module, x: torch.Tensor) -> None:
    model(x).pow(2).mean().backward()


def difference(
    build: Callable[[], nn.Module], chosen: Plan, backward: Callable[[nn.Module, torch.Tensor], None]
) -> float:
    """By how much the gradients of two steps differ from those of one process."""
    torch.manual_seed(0)
    plain, x = build(), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen)
    rank = torch.distributed.get_rank()
    for model, samples in ((plain, x), (wrapped, x[2 * rank : 2 * rank + 2])):
        for _ in range(2):
            model.zero_grad()
            backward(model, samples)
    return apart(plain, wrapped)


def flipped(chosen: Plan, flags: list[bool]) -> float:
    """By how much gradients differ where a block's parameters ask for some as these steps say.

    The first flag is that of the model as it is given.
    """
    torch.manual_seed(0)
    plain, x = Scores(), torch.randn(4, 8)
    plain[0].requires_grad_(flags[0])
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen)
    rank = torch.distributed.get_rank()
    worst = 0.0
    for flag in flags[1:]:
        for model, samples in ((plain, x), (wrapped, x[2 * rank : 2 * rank + 2])):
            getattr(model, "module", model)[0].requires_grad_(flag)
            model.zero_grad()
            plainly(model, samples)
        worst = max(worst, apart(plain, wrapped))
    return worst


def replaced(chosen: Plan) -> None:
    """Give a wrapped model a new head."""
    wrapped = parastrat.auto_parallelize(Scores(), plan=chosen)
    getattr(wrapped, "module", wrapped)[2] = nn.Linear(8, 1)
    plainly(wrapped, torch.randn(2, 8))


def apart(plain: nn.Module, wrapped: nn.Module) -> float:
    """By how much the gradients of two models differ, where either has one."""
    found = []
    for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
        given: Any = other.grad
        assert (one.grad is None) == (given is None)
        if one.grad is not None:
            given = given.full_tensor() if hasattr(given, "full_tensor") else given
            found.append(float((given - one.grad).abs().max()))
    return max(found)


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        f"{kind} {strategy}": partial(difference, build, chosen, backward)
        for strategy, chosen in {"ddp": DDP, "fsdp2": FSDP2}.items()
        for kind, build, backward in (
            ("penalty", Scores, on_inputs),
            ("moved", Scores, against),
            ("forces", Forces, plainly),
        )
    }
    for strategy, chosen in {"ddp": DDP, "fsdp2": FSDP2}.items():
        for kind, flags in FLAGS.items():
            asked[f"{kind} {strategy}"] = partial(flipped, chosen, flags)
    asked["replaced ddp"] = partial(replaced, DDP)
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_gradients_that_are_no_step_of_ddp(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert all(found[f"{kind} ddp"] < 1e-6 for kind in ("penalty", "moved", "forces"))


def test_gradients_of_gradients_under_fsdp2(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["moved fsdp2"] < 1e-6
        for kind in ("penalty", "forces"):
            assert "FSDP2 frees the weights that they read" in found[f"{kind} fsdp2"]


def test_parameters_frozen_and_thawed(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for kind in FLAGS:
            assert found[f"{kind} ddp"] < 1e-6
            assert found[f"{kind} fsdp2"] < 1e-6


def test_parameters_replaced(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "2.weight is not the parameter that auto_parallelize saw" in found["replaced ddp"]
