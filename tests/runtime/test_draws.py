"""Divided weights that a script initialises again, or adds noise to, are those of one process on CPUs."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

PLANS = {
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2, micro_batch_size=4),
    "both": plan(dp_shard=2, tp=2, micro_batch_size=4),
}


def initialised(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight)
            nn.init.trunc_normal_(part.bias)


def reset(model: nn.Module) -> None:
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.LayerNorm):
            part.reset_parameters()


def noisy(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter)).mul_(torch.rand_like(parameter))
            parameter.data.normal_(std=0.5)
            parameter.mul_(torch.empty_like(parameter).bernoulli_(0.5))


def off(chosen: Plan, change: Any) -> float:
    """By how much changed weights are others than those of one process."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 7), nn.Linear(7, 8), Block(), Block(), nn.LayerNorm(8))
    sample = torch.randn(4, 8)
    model = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen, sample_inputs=sample)
    found = []
    for each in (plain, model):
        torch.manual_seed(1)
        change(each)
        found.append([p.full_tensor() if hasattr(p, "full_tensor") else p for p in each.parameters()])
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


def everything(names: list[str]) -> dict[str, Any]:
    changes = (initialised, reset, noisy)
    return answers(
        {f"{name} {each.__name__}": partial(off, PLANS[name], each) for name in names for each in changes}
    )


def test_shares_are_those_of_the_whole() -> None:
    for found in (*on_ranks(2, everything, ["fsdp2", "tp"]), *on_ranks(4, everything, ["both"])):
        assert not {name: each for name, each in found.items() if each}
