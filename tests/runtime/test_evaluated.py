"""What a forward without gradients leaves gathered is let go of: optimizers and averages see the shards."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow

PLANS: dict[str, Plan | None] = {
    "ddp": plan(dp_replicate=2),
    "fsdp2": plan(dp_shard=2),
    "kept": plan(dp_shard=2, reshard_after_forward=False),
}
X = torch.linspace(-1, 1, 16).view(2, 8)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)  # type: ignore[no-any-return]


class Forces(Layers):
    """Takes gradients of its energy in its forward, for which FSDP2 gathers again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = super().forward(x)
            (forces,) = torch.autograd.grad(energy.sum(), x, retain_graph=True)
        return energy + forces.detach().sum(-1, keepdim=True)


class Returning(Layers):
    """Returns one of its parameters beside its output."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x), self.last.weight


def wrapped(chosen: Plan | None, kind: type[nn.Module] = Layers) -> nn.Module:
    torch.manual_seed(0)
    model = kind()
    if chosen is None:
        return model
    return parastrat.auto_parallelize(model, plan=chosen, sample_inputs=X)


def evaluated(model: nn.Module) -> float:
    with torch.no_grad():
        return model(X).sum().item()


def optimizer_made_then(chosen: Plan | None) -> float:
    model = wrapped(chosen)
    evaluated(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).pow(2).mean().backward()
    optimizer.step()
    return evaluated(model)


def step_behind(chosen: Plan | None) -> float:
    model = wrapped(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).pow(2).mean().backward()
    evaluated(model)
    optimizer.step()
    return evaluated(model)


def averaged_then(chosen: Plan | None) -> float:
    model, average = wrapped(chosen), wrapped(chosen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(X).pow(2).mean().backward()
    optimizer.step()
    evaluated(model)
    with torch.no_grad():
        for own, new in zip(average.parameters(), model.parameters(), strict=True):
            own.mul_(0.5).add_(new, alpha=0.5)
    return evaluated(average)


def stepped(chosen: Plan | None, kind: type[nn.Module]) -> float:
    model = wrapped(chosen, kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        output = model(X)
        (output[0] if isinstance(output, tuple) else output).pow(2).mean().backward()
        optimizer.step()
    return float(sum(each.detach().pow(2).sum() for each in whole(model)))


def whole(model: nn.Module) -> list[torch.Tensor]:
    return [
        each.full_tensor() if hasattr(each, "full_tensor") else each for each in model.state_dict().values()
    ]


class Words(IterableDataset[Any]):
    def __iter__(self) -> Any:
        for number in range(8):
            yield torch.tensor(float(number)), np.array([f"word {number}"], dtype=object)


def of_objects(chosen: Plan) -> int:
    wrapped(chosen)
    loader = DataLoader(Words(), batch_size=2, collate_fn=lambda samples: [each[0] for each in samples])
    return sum(1 for _ in parastrat.shard_dataloader(loader))


def summed(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return averaged(functional.mse_loss(output, targets, reduction="sum"), output.numel())


def averaged(total: torch.Tensor, many: int) -> torch.Tensor:
    return total / many


def with_helper(chosen: Plan) -> float:
    model = wrapped(chosen)
    return float(parastrat.forward_backward(model, X, torch.zeros(2, 1), loss_fn=summed).detach())


CASES: dict[str, Callable[[Plan | None], float]] = {
    "optimizer": optimizer_made_then,
    "step": step_behind,
    "average": averaged_then,
    "forces": partial(stepped, kind=Forces),
    "returned": partial(stepped, kind=Returning),
}


def everything() -> dict[str, Any]:
    return answers(
        {
            **{
                f"{case} {name}": partial(CASES[case], chosen)
                for case in CASES
                for name, chosen in PLANS.items()
            },
            "objects": partial(of_objects, plan(dp_replicate=2)),
            "helper": partial(with_helper, plan(dp_replicate=2)),
        }
    )


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("case", CASES)
def test_as_on_one_device(ranks: list[dict[str, Any]], case: str) -> None:
    expected = CASES[case](None)
    for found in ranks:
        for name in PLANS:
            assert found[f"{case} {name}"] == pytest.approx(expected, rel=1e-5), name


def test_streams_of_objects_are_alike(ranks: list[dict[str, Any]]) -> None:
    assert [found["objects"] for found in ranks] == [ranks[0]["objects"]] * 2
    assert isinstance(ranks[0]["objects"], int)


def test_sums_that_another_function_divides_are_means(ranks: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    expected = functional.mse_loss(Layers()(X), torch.zeros(2, 1)).item()
    assert ranks[0]["helper"] == pytest.approx(expected, rel=1e-5)
