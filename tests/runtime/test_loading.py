"""Whole weights that a script loads into a divided model by itself are refused, with the way that works."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

import parastrat
from parastrat.plan import Plan
from parastrat.runtime.wrapped import inner

pytestmark = pytest.mark.slow

X = torch.linspace(-1, 1, 32).view(4, 8)
PLANS = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "tp": plan(tp=2, micro_batch_size=4),
    "pp": plan(pp=2, gradient_accumulation_steps=2),
}


def built(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))


def loaded(chosen: Plan, **keywords: bool) -> float:
    """By how much weights are others than those that were loaded."""
    state = built(1).state_dict()
    model = parastrat.auto_parallelize(built(0), plan=chosen, sample_inputs=X[:2])
    if keywords.pop("by torch", False):
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))
    elif keywords.pop("of a part", False):
        part = {name.removeprefix("1."): each for name, each in state.items() if name.startswith("1.")}
        inner(model).get_submodule("1").load_state_dict(part, **keywords)
    else:
        inner(model).load_state_dict(state, **keywords)
    state = built(1).state_dict()  # torch divides what it is given
    return max(
        float(((each.full_tensor() if hasattr(each, "full_tensor") else each) - state[name]).abs().max())
        for name, each in inner(model).named_parameters()
    )


def everything() -> dict[str, Any]:
    asked = {name: partial(loaded, each) for name, each in PLANS.items()}
    asked |= {f"{name} assigned": partial(loaded, PLANS[name], assign=True) for name in ("fsdp2", "tp")}
    asked |= {
        f"{name} part": partial(loaded, PLANS[name], **{"of a part": True}) for name in ("fsdp2", "tp")
    }
    asked |= {
        f"{name} right": partial(loaded, PLANS[name], **{"by torch": True}) for name in ("fsdp2", "tp")
    }
    return answers(asked | {"pp right": partial(loaded, PLANS["pp"], strict=False)})


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_what_is_whole_is_refused(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        for name in ("fsdp2", "tp", "fsdp2 assigned", "tp assigned", "fsdp2 part", "tp part"):
            assert "whole, and each rank has a part of it" in str(found[name]), name
        assert "which another stage of the pipeline has" in str(found["pp"])


def test_other_ways_load_it(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert [found[name] for name in ("ddp", "fsdp2 right", "tp right", "pp right")] == [0.0] * 4
