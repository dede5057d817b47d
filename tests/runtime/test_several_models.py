"""Scripts that wrap several models: a generator and its critic, a student and its frozen teacher."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.loops import PLANS, RECIPES, Setting
from runtime.loops.setting import Mlp
from runtime.ranks import answers, on_ranks

pytestmark = pytest.mark.slow

LOOPS = ("a_generator_and_its_critic", "a_teacher")
CALLED = ("ddp", "fsdp2", "tp")


def trained_after_all() -> None:
    """Train what was wrapped as nothing to train: nobody reduces its gradients."""
    setting = Setting(plan=PLANS["ddp"])
    model = setting.model(lambda: Mlp().requires_grad_(requires_grad=False))
    optimizer = torch.optim.SGD(model.requires_grad_(requires_grad=True).parameters(), 0.1)
    setting.trained(model, optimizer)


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {
        f"{name} {strategy}": partial(RECIPES[name], Setting(plan=PLANS[strategy]))
        for name in LOOPS
        for strategy in CALLED
    }
    return answers(asked | {"trained after all": trained_after_all})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("strategy", CALLED)
def test_losses_are_those_of_one_process(ranks: list[dict[str, Any]], name: str, strategy: str) -> None:
    expected = RECIPES[name](Setting())
    for found in ranks:
        assert found[f"{name} {strategy}"] == pytest.approx(expected, rel=1e-4)


def test_what_is_trained_after_all_is_noticed(ranks: list[dict[str, Any]]) -> None:
    assert all("the ranks have trained apart" in str(found["trained after all"]) for found in ranks)
