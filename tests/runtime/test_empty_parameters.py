"""Parameters without elements, such as a table of register tokens where a model has none."""

from __future__ import annotations

import pytest
import torch
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import parastrat
from parastrat.runtime.tensor_parallel.comparison import compared
from parastrat.runtime.tensor_parallel.computed import Results


class Registered(nn.Module):
    """As DINOv3: tokens that are put before the others, of which there are none."""

    def __init__(self) -> None:
        super().__init__()
        self.registers = nn.Parameter(torch.empty(1, 0, 4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([self.registers.expand(len(x), -1, -1), x], 1).mean(1))


def gradient(fields: dict[str, int]) -> torch.Tensor:
    """Of the layer; every rank has the same samples."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Registered(), plan=plan(**fields))
    x, y = torch.linspace(-1, 1, 24).reshape(2, 3, 4), torch.arange(2)
    parastrat.forward_backward(model, x, y, loss_fn=functional.cross_entropy)
    found = model.layer.weight.grad
    return found.full_tensor() if isinstance(found, DTensor) else found


@pytest.mark.slow
def test_fsdp2_trains_what_stands_beside_a_parameter_without_elements() -> None:
    alone = gradient({})
    for rank in on_ranks(2, gradient, {"dp_shard": 2}):
        torch.testing.assert_close(rank, alone)


def test_a_proof_compares_what_stands_beside_a_gradient_without_elements() -> None:
    def gradients(value: float) -> Results:
        held = {"registers": torch.empty(1, 0, 4), "layer.weight": torch.full((2,), value)}
        return Results(outputs=[], gradients=held)

    assert compared(gradients(1.0), gradients(1.0)) == {}
    assert compared(gradients(1.0), gradients(1.5)) == {"layer.weight": 0.5}
