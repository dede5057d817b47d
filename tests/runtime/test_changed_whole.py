"""Norms and ratios over divided tensors that a script changes in place are those of one process."""

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

PLANS = {"fsdp2": plan(dp_shard=2), "tp": plan(tp=2, micro_batch_size=4)}
X = torch.linspace(-1, 1, 32).view(4, 8)


def clipped_by_units(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Adaptive clipping."""
    dims = tuple(range(1, parameter.ndim)) or None
    most = parameter.norm(2, dim=dims, keepdim=True).clamp_(min=1e-3).mul_(0.01)
    norm = gradient.norm(2, dim=dims, keepdim=True).clamp_min_(1e-6)
    return torch.where(norm < most, gradient, gradient * (most / norm))


def along_weights(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of a projection, as of AdamP."""
    cosine = (parameter * gradient).sum().abs_().add_(1e-8).sqrt_()
    mean = gradient.abs().mean().clamp_(min=1e-3, max=1.0).reciprocal_().add_(cosine).pow_(0.5)
    return gradient * mean


def off(chosen: Plan, changed: Any) -> float:
    """By how much weights are others than those of one process behind three steps."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.LayerNorm(8))
    model = parastrat.auto_parallelize(copy.deepcopy(plain), plan=chosen, sample_inputs=X)
    found = []
    for each in (plain, model):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            each(X).pow(2).mean().backward()
            with torch.no_grad():
                for parameter in each.parameters():
                    assert parameter.grad is not None
                    parameter.grad.copy_(changed(parameter, parameter.grad))
            optimizer.step()
            optimizer.zero_grad()
        found.append([p.full_tensor() if hasattr(p, "full_tensor") else p for p in each.parameters()])
    return max(float((one - other).abs().max()) for one, other in zip(*found, strict=True))


def everything() -> dict[str, Any]:
    return answers(
        {
            f"{name} {each.__name__}": partial(off, chosen, each)
            for name, chosen in PLANS.items()
            for each in (clipped_by_units, along_weights)
        }
    )


def test_steps_are_those_of_one_process() -> None:
    for found in on_ranks(2, everything):
        assert not {name: each for name, each in found.items() if not each < 1e-5}
