"""Experts of which a rank's tokens choose some alone."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import parastrat
from parastrat.runtime.blocks import has_routed_parts


class Routed(nn.Module):
    """Each sample goes to one of three experts; the last one never sees any."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen = [int(sample.mean() > 0) for sample in x]
        x = self.first(x)
        return torch.stack([self.experts[place](row) for place, row in zip(chosen, x, strict=True)])


def gradients(fields: dict[str, int], kind: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(MODELS[kind](), plan=plan(**fields))
    x, y = torch.tensor([[1.0, 2, 3, 4], [-4, -3, -2, -1]]), torch.arange(2)
    if dist.is_initialized():
        own = slice(dist.get_rank(), dist.get_rank() + 1)
        x, y = x[own], y[own]
    parastrat.forward_backward(model, x, y, loss_fn=functional.cross_entropy)
    found = {
        name.removeprefix("module."): parameter.grad.full_tensor()
        if isinstance(parameter.grad, DTensor)
        else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    return {name: gradient for name, gradient in found.items() if gradient.any()}


class Stack(nn.Module):
    """The weights of all experts in one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, 4, 4))


class Idle(nn.Module):
    """A sample goes to an expert with weights, or to one without, which changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.experts = Stack()
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        works = [bool(sample.mean() > 0) for sample in x]
        x = self.first(x)
        rows = [row @ self.experts.weight[0] if work else row for work, row in zip(works, x, strict=True)]
        return self.last(torch.stack(rows))


MODELS = {"listed": Routed, "stacked": Idle}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("fields", [{"dp_shard": 2}, {"dp_replicate": 2}])
def test_ranks_that_chose_other_experts_reduce_alike(fields: dict[str, int], kind: str) -> None:
    alone = gradients({}, kind)
    expected = {"listed": {"experts.0.weight", "experts.1.weight"}, "stacked": {"experts.weight"}}
    assert expected[kind] <= alone.keys()
    for rank in on_ranks(2, gradients, fields, kind):
        assert rank.keys() == alone.keys()
        for name, gradient in rank.items():
            torch.testing.assert_close(gradient, alone[name])


def test_experts_are_told_from_other_lists() -> None:
    assert has_routed_parts(Routed())
    assert not has_routed_parts(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))
    assert has_routed_parts(Idle())
    lone = Routed()
    lone.experts = lone.experts[:1]
    assert not has_routed_parts(lone)
