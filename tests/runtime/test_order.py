"""Ranks that gather other weights than each other under FSDP2 are told, before parts are mixed up."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.runtime.training import order

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 16).view(2, 8)


class Ways(nn.Module):
    """Runs its blocks in an order that another object gives."""

    def __init__(self, draw: Callable[[], list[int]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.out = nn.Linear(8, 4)
        self.ways = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number in self.ways():
            x = self.blocks[number](x)
        return self.out(x)  # type: ignore[no-any-return]


def trained(
    draw: Callable[[], list[int]], *, seed: int, between: Callable[[int, nn.Module], Any] | None = None
) -> None:
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Ways(draw), plan=plan(dp_shard=2), sample_inputs=X)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    random.seed(seed)
    for step in range(6):
        model(X).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if between is not None:
            between(step, model)


def in_another_order() -> list[int]:
    return random.sample(range(4), 3)


def fewer() -> list[int]:
    return list(range(random.randint(1, 4)))  # noqa: S311  (no secret)


def in_order() -> list[int]:
    return [0, 1, 2, 3]


def evaluated(model: nn.Module) -> None:
    with torch.no_grad():
        model(X)


def by_first_alone(step: int, model: nn.Module) -> None:
    if step == 2 and dist.get_rank() == 0:
        evaluated(model)


def by_all(_step: int, model: nn.Module) -> None:
    evaluated(model)
    with torch.no_grad():
        model(X)


def everything() -> dict[str, Any]:
    rank = int(os.environ["RANK"])
    asked = {
        "another order": partial(trained, in_another_order, seed=rank),
        "fewer": partial(trained, fewer, seed=rank),
        "one order": partial(trained, in_another_order, seed=5, between=by_all),
        "one number": partial(trained, fewer, seed=5),
    }
    return answers(asked)


def evaluated_by_first_alone() -> dict[str, Any]:
    with patch.object(order, "WAIT", timedelta(seconds=5)):
        return answers({"": partial(trained, in_order, seed=0, between=by_first_alone)})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("case", ["another order", "fewer"])
def test_ranks_that_would_mix_weights_are_told(ranks: list[dict[str, Any]], case: str) -> None:
    for found in ranks:
        assert "the ranks take other ways through Ways: this one came to" in str(found[case])


def test_ranks_of_one_mind_go_on(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert found["one order"] is None
        assert found["one number"] is None


def test_a_rank_that_evaluates_alone_is_told() -> None:
    first, second = on_ranks(2, evaluated_by_first_alone)
    assert "this one came to the beginning of a forward without gradients, number 1" in first[""]
    assert "this one came to the beginning of a forward with gradients, number 4" in second[""]
