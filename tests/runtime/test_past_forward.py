"""What a script ends with that runs layers of a divided model past its forward."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.fsdp import register_fsdp_forward_method

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

X = torch.ones(2, 8)
PLANS = {"fsdp2": plan(dp_shard=2), "tp": plan(tp=2, micro_batch_size=4)}


class Encoder(nn.Module):
    """Gives what its head reads by a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 4)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.stem(x) * self.scale)  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encode(x))  # type: ignore[no-any-return]


def by_method(model: Any) -> torch.Tensor:
    return model.encode(X)  # type: ignore[no-any-return]


def by_part(model: Any) -> torch.Tensor:
    return model.stem(X)  # type: ignore[no-any-return]


def wrapped(chosen: Plan) -> nn.Module:
    torch.manual_seed(0)
    return parastrat.auto_parallelize(Encoder(), plan=chosen, sample_inputs=torch.randn(4, 8))


def ended_with(chosen: Plan, call: Callable[[Any], torch.Tensor]) -> str:
    model = wrapped(chosen)
    model(X).sum().backward()
    try:
        with torch.no_grad():
            call(model)
    except RuntimeError as error:
        with contextlib.redirect_stderr(io.StringIO()) as printed:
            sys.excepthook(type(error), error, error.__traceback__)
        return printed.getvalue()
    return "nothing"


def as_told(chosen: Plan) -> float:
    """Return how far a method that is registered is from that of one process, behind a step."""
    torch.manual_seed(0)
    plain, model = Encoder(), wrapped(chosen)
    register_fsdp_forward_method(model, "encode")
    with torch.no_grad():
        before = by_method(model)
    model(X).sum().backward()
    with torch.no_grad():
        return float(
            (by_method(model) - by_method(plain)).abs().max() + (before - by_method(plain)).abs().max()
        )


def everything() -> dict[str, Any]:
    return answers(
        {
            "by_method fsdp2": partial(ended_with, PLANS["fsdp2"], by_method),
            "by_method tp": partial(ended_with, PLANS["tp"], by_method),
            "by_part fsdp2": partial(ended_with, PLANS["fsdp2"], by_part),
            "as told": partial(as_told, PLANS["fsdp2"]),
        }
    )


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


def test_methods_are_named_and_how_to_let_them_run(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "register_fsdp_forward_method(model, 'encode')" in found["by_method fsdp2"]
        assert found["as told"] < 1e-6


def test_parts_are_named(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "the script calls Linear by itself" in found["by_part fsdp2"]


def test_without_fsdp2_the_forward_is_to_call_it(ranks: list[dict[str, Any]]) -> None:
    for found in ranks:
        assert "encode runs past the model's forward" in found["by_method tp"]
        assert "register_fsdp_forward_method" not in found["by_method tp"]
