"""Losses of a pipeline that read weights: those of the last stage they have, others are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.pipeline.stages import several
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import ParastratError
from parastrat.plan import PipelineSchedule

LAYERS = 4
SCHEDULES: dict[str, dict[str, Any]] = {
    "1F1B": {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B},
    "interleaved": several(PipelineSchedule.INTERLEAVED),
    "ZBV": several(PipelineSchedule.ZBV),
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())


def _all(model: nn.Module) -> torch.Tensor:
    return sum((each.pow(2).sum() for each in model.parameters()), torch.zeros(()))


#: what a loss adds, of the model
PENALTIES: dict[str, Callable[[Any], torch.Tensor]] = {
    "all": _all,
    "first": lambda model: model[0].down.weight.pow(2).sum(),
    "first called": lambda model: model[0](torch.ones(1, 8)).pow(2).sum(),
    "last": lambda model: model[LAYERS - 1].down.weight.pow(2).sum() + _all(model[LAYERS - 1].up),
    # another stage of the rank that has the last one
    "beside": lambda model: model[1].down.weight.pow(2).sum(),
    "shape": lambda model: torch.full((), 1.0 * model[0].down.weight.shape[0]),
}
REFUSED = ("all", "first", "first called")


def _with(penalty: Callable[[Any], torch.Tensor], fields: dict[str, Any]) -> float | str:
    """By how much loss and gradients are off."""
    torch.manual_seed(0)
    plain = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(
        copy.deepcopy(plain), plan=plan(gradient_accumulation_steps=2, **fields), sample_inputs=x[:2]
    )
    expected = functional.mse_loss(plain(x), y) + penalty(plain)
    expected.backward()
    try:
        found = parastrat.forward_backward(
            wrapped, x, y, loss_fn=lambda out, targets: functional.mse_loss(out, targets) + penalty(wrapped)
        )
    except ParastratError as error:
        return error.message
    off = [float((found - expected).detach().abs())]
    for name, parameter in wrapped.named_parameters():
        gradient, other = parameter.grad, plain.get_parameter(name).grad
        assert gradient is not None
        assert other is not None
        off.append(float((gradient - other).abs().max()))
    return max(off)


def _everything() -> dict[str, float | str]:
    asked = [
        (name, schedule) for schedule in ("1F1B", "interleaved") for name in ("last", "shape", *REFUSED)
    ]
    asked += [("beside", "interleaved"), ("shape", "ZBV")]
    # the ranks part there: its stages cannot keep step
    asked += [("last", "ZBV")]
    return {f"{name} {schedule}": _with(PENALTIES[name], SCHEDULES[schedule]) for name, schedule in asked}


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, float | str]]:
    return on_ranks(2, _everything)


@pytest.mark.slow
def test_weights_of_other_stages(ranks: list[dict[str, float | str]]) -> None:
    for found in ranks:
        for schedule in ("1F1B", "interleaved"):
            assert "the loss lists parameters" in str(found[f"all {schedule}"])
            for name in ("first", "first called"):
                assert "the loss reads a weight of shape" in str(found[f"{name} {schedule}"])


@pytest.mark.slow
def test_weights_that_are_there(ranks: list[dict[str, float | str]]) -> None:
    for found in ranks:
        for name in ("last 1F1B", "last interleaved", "beside interleaved"):
            assert float(found[name]) < 1e-5
        assert all(float(found[f"shape {schedule}"]) < 1e-5 for schedule in SCHEDULES)


@pytest.mark.slow
def test_weights_under_split_backwards(ranks: list[dict[str, float | str]]) -> None:
    assert all("that splits backward would not compute" in str(found["last ZBV"]) for found in ranks)
