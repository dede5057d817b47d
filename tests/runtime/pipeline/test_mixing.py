"""What a script works out of all weights is that of a stage under a pipeline: refused, or told of."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat

pytestmark = pytest.mark.slow

_ALONE = re.compile("alone under a pipeline|of its own stages alone")
X, Y = torch.linspace(-1, 1, 32).view(4, 8), torch.linspace(1, -1, 32).view(4, 8)


class OfAnother(torch.optim.SGD):
    """An optimizer that is none of torch's own."""


def perturbed(model: nn.Module) -> None:
    """Move weights by the norm of all gradients, as sharpness-aware minimization does."""
    with torch.no_grad():
        gradients = [each.grad for each in model.parameters() if each.grad is not None]
        norm = torch.stack([each.norm() for each in gradients]).norm()
        for each in model.parameters():
            if each.grad is not None:
                each.add_(each.grad / norm, alpha=0.05)
    backward(model)


def clipped_by_hand(model: nn.Module) -> None:
    for each in model.parameters():
        if each.grad is not None:
            each.grad.mul_(0.5)


def clipped(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def averaged_between(model: nn.Module) -> None:
    """What is read alone changes nothing."""
    [each.detach().clone() for each in model.parameters()]


def backward(model: nn.Module) -> None:
    parastrat.forward_backward(model, X, Y, loss_fn=functional.mse_loss)


def told(kind: Callable[..., Any], between: Callable[[nn.Module], None] = averaged_between) -> list[str]:
    """Return what three steps warn of."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
    chosen = plan(pp=2, gradient_accumulation_steps=2)
    wrapped = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=X[:2])
    optimizer = kind(wrapped.parameters())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            backward(wrapped)
            between(wrapped)
            if isinstance(optimizer, torch.optim.LBFGS):
                optimizer.step(
                    lambda: parastrat.forward_backward(wrapped, X, Y, loss_fn=functional.mse_loss)
                )
            else:
                optimizer.step()
            optimizer.zero_grad()
    return [str(each.message) for each in caught if _ALONE.search(str(each.message))]


class Averaged(nn.Module):
    """A momentum encoder beside the one that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Sequential(nn.Linear(8, 8), Block(), Block())
        self.average = copy.deepcopy(self.online).requires_grad_(False)
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.online(x) - self.average(x))  # type: ignore[no-any-return]


def averaged() -> list[str]:
    """Return what a pipeline of it warns of."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parastrat.auto_parallelize(
            Averaged(), plan=plan(pp=2, gradient_accumulation_steps=2), sample_inputs=X[:2]
        )
    return [str(each.message) for each in caught if "looks like" in str(each.message)]


def by_depth(parameters: Iterator[nn.Parameter], count: int) -> torch.optim.Optimizer:
    held = list(parameters)
    groups = [{"params": held[place::count], "lr": 0.1 / (1 + place)} for place in range(count)]
    return torch.optim.SGD(groups, lr=0.1)


def everything() -> dict[str, Any]:
    sgd = partial(torch.optim.SGD, lr=0.1)
    asked: dict[str, Callable[[], Any]] = {
        "plain": partial(told, partial(torch.optim.AdamW, lr=0.1)),
        "clipped": partial(told, sgd, clipped),
        "clipped by hand": partial(told, sgd, clipped_by_hand),
        "perturbed": partial(told, sgd, perturbed),
        "another": partial(told, partial(OfAnother, lr=0.1)),
        "two rates": partial(told, partial(by_depth, count=2)),
        "three rates": partial(told, partial(by_depth, count=3)),
        "averaged": averaged,
        "line search": partial(told, torch.optim.LBFGS),
    }
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_what_is_of_each_weight_alone_is_not_told_of(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["plain"] == found["clipped"] == found["two rates"] == []


def test_what_may_be_of_all_is_told_of_once(ranks: list[dict[str, Any]]) -> None:
    said = {
        "clipped by hand": "gradients were changed between",
        "perturbed": "weights were changed behind forward_backward",
        "another": "OfAnother is none of torch.optim's",
        "three rates": "SGD has 3 learning rates",
        "averaged": "average is not trained and looks like online",
    }
    for found in ranks:
        for name, beginning in said.items():
            assert len(found[name]) == 1, (name, found[name])
            assert found[name][0].startswith(beginning)


def test_line_searches_are_refused(ranks: list[dict[str, Any]]) -> None:
    assert all(
        "searches along one direction of all weights" in str(found["line search"]) for found in ranks
    )
