"""Scripts that wrap several models: a generator and its critic, a student and its frozen teacher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

STEPS = 3
PLANS: dict[str, Plan] = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2, micro_batch_size=4),
}


def model_of(features: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, features))


def wrapped(model: nn.Module, chosen: Plan | None) -> nn.Module:
    if chosen is None:
        return model
    return parastrat.auto_parallelize(model, plan=chosen, sample_inputs=torch.ones(1, 8))


def batch(step: int, chosen: Plan | None) -> torch.Tensor:
    samples = torch.randn(4, 8, generator=torch.Generator().manual_seed(step))
    if chosen is None or chosen.mesh.dp == 1:
        return samples
    return samples.chunk(2)[torch.distributed.get_rank()]


def mean(loss: torch.Tensor, chosen: Plan | None) -> float:
    """Return the mean over ranks, which are two."""
    loss = loss.detach().clone()
    if chosen is not None:
        torch.distributed.all_reduce(loss)
        loss /= 2
    return float(loss)


def against_each_other(chosen: Plan | None) -> list[float]:
    """Train a generator and a critic, through which the generator's gradients come."""
    maker, critic = wrapped(model_of(8, 0), chosen), wrapped(model_of(1, 1), chosen)
    making, judging = (torch.optim.Adam(each.parameters(), 1e-2) for each in (maker, critic))
    losses = []
    for step in range(STEPS):
        real, made = batch(step, chosen), maker(batch(step + STEPS, chosen))
        loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(made.detach())).mean()
        judging.zero_grad()
        loss.backward()
        judging.step()
        losses.append(mean(loss, chosen))
        loss = functional.softplus(-critic(made)).mean()
        making.zero_grad()
        loss.backward()
        making.step()
        losses.append(mean(loss, chosen))
    return losses


def taught(chosen: Plan | None) -> list[float]:
    """Train a student on what a teacher answers, of which rank 1 has other weights at first."""
    rank = 0 if chosen is None else torch.distributed.get_rank()
    teacher = wrapped(model_of(8, 2 + rank).eval().requires_grad_(False), chosen)
    student = wrapped(model_of(8, 0), chosen)
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    losses = []
    for step in range(STEPS):
        samples = batch(step, chosen)
        with torch.no_grad():
            targets = teacher(samples)
        loss = functional.mse_loss(student(samples), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(mean(loss, chosen))
    return losses


def trained_after_all() -> None:
    """Train what was wrapped as nothing to train: nobody reduces its gradients."""
    model = wrapped(model_of(8, 0).requires_grad_(False), PLANS["ddp"])
    optimizer = torch.optim.SGD(model.requires_grad_(True).parameters(), 0.1)
    for step in range(STEPS):
        functional.mse_loss(model(batch(step, PLANS["ddp"])), torch.ones(2, 8)).backward()
        optimizer.step()
        optimizer.zero_grad()


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        f"{each.__name__} {name}": partial(each, chosen)
        for each in (against_each_other, taught)
        for name, chosen in PLANS.items()
    }
    return answers(asked | {"trained after all": trained_after_all})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("each", [against_each_other, taught])
@pytest.mark.parametrize("name", list(PLANS))
def test_losses_are_those_of_one_process(
    ranks: list[dict[str, Any]], each: Callable[[Plan | None], list[float]], name: str
) -> None:
    expected = each(None)
    for found in ranks:
        assert found[f"{each.__name__} {name}"] == pytest.approx(expected, rel=1e-4)


def test_what_is_trained_after_all_is_noticed(ranks: list[dict[str, Any]]) -> None:
    assert all("the ranks have trained apart" in str(found["trained after all"]) for found in ranks)
