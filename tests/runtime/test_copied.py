"""Copies of wrapped models, as averages of their weights are: they work, or are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Gpt, plan, token_loss, tokens
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import parastrat
from parastrat.plan import Plan, Recompute
from parastrat.workload import Precision

pytestmark = pytest.mark.slow

#: of the average, what a step leaves
KEPT = 0.5


def own(samples: torch.Tensor) -> torch.Tensor:
    rank = torch.distributed.get_rank()
    return samples[2 * rank : 2 * rank + 2]


def averaged(wrapped: nn.Module, plain: nn.Module, average: Callable[[nn.Module], Any]) -> float:
    """By how much an average of weights over three steps answers otherwise than one process's."""
    answers = []
    for model in (plain, wrapped):
        is_wrapped = model is wrapped
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        other, update = average(model)
        for step in range(3):
            x, y = tokens(step, 4)
            if is_wrapped:
                parastrat.forward_backward(model, own(x), own(y), loss_fn=token_loss)
            else:
                token_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            update()
        other.eval()
        with torch.no_grad():
            answers.append(other(tokens(9, 2)[0]))
    moved = (answers[0] - plain(tokens(9, 2)[0])).abs().max()
    assert float(moved.detach()) > 0.01
    return float((answers[0] - answers[1]).abs().max())


def by_torch(model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    other = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(KEPT))
    return other, partial(other.update_parameters, model)


def beside(other: nn.Module, model: nn.Module) -> tuple[nn.Module, Callable[[], None]]:
    """Average into a model that was wrapped too, as the refusal says; torch's begins with a copy."""
    first = True

    def update() -> None:
        nonlocal first
        with torch.no_grad():
            for mean, value in zip(other.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 1.0 if first else 1 - KEPT)
        first = False

    return other, update


def average_under(chosen: Plan) -> float:
    torch.manual_seed(0)
    plain = Gpt()
    return averaged(parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen), plain, by_torch)


def average_beside(chosen: Plan) -> float:
    torch.manual_seed(0)
    plain = Gpt()
    other = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen)
    start = copy.deepcopy(plain)
    return averaged(wrapped, plain, lambda model: beside(start if model is plain else other, model))


def left_behind(chosen: Plan) -> float:
    """By how much a copy's answers move with the model that it was made of."""
    x, _ = tokens(0, 2)
    wrapped = parastrat.auto_parallelize(Gpt(), plan=chosen)
    with torch.no_grad():
        before, other = wrapped(x), copy.deepcopy(wrapped)
        for parameter in wrapped.parameters():
            parameter.mul_(2)
        return float((other(x) - before).abs().max())


def copied(chosen: Plan) -> None:
    copy.deepcopy(parastrat.auto_parallelize(Gpt(), plan=chosen, sample_inputs=tokens(0, 1)[0]))


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        "average ddp": partial(average_under, plan(dp_replicate=2)),
        "average fsdp2": partial(average_beside, plan(dp_shard=2)),
        "mixed": partial(left_behind, plan(dp_replicate=2, precision=Precision.BF16_MIXED)),
        "attention": partial(left_behind, plan(dp_replicate=2, recompute=Recompute.ATTENTION)),
        "full": partial(left_behind, plan(dp_replicate=2, recompute=Recompute.FULL)),
        "copied fsdp2": partial(copied, plan(dp_shard=2)),
        "copied tp": partial(copied, plan(tp=2)),
        "copied pp": partial(copied, plan(pp=2, gradient_accumulation_steps=2)),
    }
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_averages_of_weights(ranks: list[dict[str, Any]]) -> None:
    assert all(found["average ddp"] < 1e-5 for found in ranks)


def test_averages_of_shards(ranks: list[dict[str, Any]]) -> None:
    assert all(found["average fsdp2"] < 1e-5 for found in ranks)


def test_copies_run_their_own_weights(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert all(found[name] == 0 for name in ("mixed", "attention", "full"))


def test_copies_of_divided_models(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for name in ("copied fsdp2", "copied tp", "copied pp"):
            assert "cannot be copied" in str(found[name])
