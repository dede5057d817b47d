"""Other weights in place for a forward: those that compute, or refused where FSDP2 would gather its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.func import functional_call

import parastrat

pytestmark = pytest.mark.slow

PLANS = {
    "ddp": plan(dp_replicate=2, micro_batch_size=4),
    "fsdp2": plan(dp_shard=2, micro_batch_size=4),
    "tp": plan(tp=2, micro_batch_size=4),
}
X = torch.linspace(-1, 1, 32).view(4, 8)
SAID = "is not the parameter that FSDP2 gathers"

Weights = dict[str, torch.Tensor]


def copied(model: nn.Module) -> Weights:
    """Those of an average, which is a model of its own."""
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(0.5)
    return dict(average.named_parameters())


def made(model: nn.Module) -> Weights:
    return {name: (0.5 * each).detach() for name, each in model.named_parameters()}


def followed(model: nn.Module) -> Weights:
    return {name: 0.5 * each for name, each in model.named_parameters()}


WAYS = {each.__name__: each for each in (copied, made, followed)}


def evaluated(
    chosen: str, weights: Callable[[nn.Module], Weights], *, trained: bool
) -> tuple[float, float]:
    """Return what a model makes with other weights in place, and then with its own."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(Block(), Block())
    if chosen:
        model = parastrat.auto_parallelize(model, plan=PLANS[chosen], sample_inputs=X)
    if trained:
        model(X).sum().backward()
        model.zero_grad()
    with torch.no_grad():
        others = float(functional_call(model, weights(model), (X,)).pow(2).sum())
        return others, float(model(X).pow(2).sum())


def loaded(chosen: str) -> float:
    """Return what a model makes of weights that were assigned before its first forward, and later."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(nn.Sequential(Block(), Block()), plan=PLANS[chosen], sample_inputs=X)
    for _ in range(2):
        held = {name: (0.5 * each).detach() for name, each in get_model_state_dict(model).items()}
        (model.module if chosen == "ddp" else model).load_state_dict(held, assign=True)
        model(X).sum().backward()
    return float(model(X).pow(2).sum())


def everything() -> dict[str, Any]:
    asked: dict[str, Callable[[], Any]] = {}
    for chosen in PLANS:
        for way, weights in WAYS.items():
            for trained in (False, True):
                asked[f"{chosen} {way} {trained}"] = partial(evaluated, chosen, weights, trained=trained)
    asked["fsdp2 loaded"] = partial(loaded, "fsdp2")
    return answers(asked)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_others_compute_or_are_refused(ranks: list[dict[str, Any]], way: str, trained: bool) -> None:
    expected = evaluated("", WAYS[way], trained=trained)
    for found in ranks:
        for chosen in ("ddp", "tp"):
            assert found[f"{chosen} {way} {trained}"] == pytest.approx(expected, rel=1e-5), chosen
        assert SAID in found[f"fsdp2 {way} {trained}"]


def test_what_is_loaded_by_assignment_is_gathered(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.25)
        expected = float(model(X).pow(2).sum())
    for found in ranks:
        assert found["fsdp2 loaded"] == pytest.approx(expected, rel=1e-5)
