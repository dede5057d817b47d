"""What a script applies to the parts of a model in stages draws what it draws on one device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat

X = torch.linspace(-1, 1, 32).view(4, 8)


def initialised(part: nn.Module) -> None:
    if isinstance(part, nn.Linear):
        nn.init.xavier_uniform_(part.weight)
        nn.init.normal_(part.bias)


def applied() -> dict[str, Any]:
    """By how much weights are others, their names, and the loss behind."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 8))
    chosen = plan(pp=2, gradient_accumulation_steps=2)
    model = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen, sample_inputs=X[:2])
    names = [name for name, _ in model.named_parameters()]
    for each in (plain, model):
        torch.manual_seed(1)
        assert each.apply(initialised) is each
    weights = dict(plain.named_parameters())
    loss = parastrat.forward_backward(model, X, X, loss_fn=functional.mse_loss)
    alone = functional.mse_loss(plain(X), X).detach()
    pairs = [(each.detach(), weights[name].detach()) for name, each in model.named_parameters()]
    return {
        "off": max(float((one - other).abs().max()) for one, other in pairs),
        "names": names == [name for name, _ in model.named_parameters()],
        "loss": abs(float(loss / alone - 1)) < 1e-5,
    }


@pytest.mark.slow
def test_weights_are_those_of_one_process() -> None:
    assert on_ranks(2, applied) == [{"off": 0.0, "names": True, "loss": True}] * 2
