"""What the ranks of test_buffers do: batch normalisation, with other samples on every rank."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runtime.models import plan
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import parastrat
from parastrat.runtime.wrapped import inner
from parastrat.workload import Precision

Cell = dict[str, Any]


class Block(nn.Module):
    """A layer with batch normalisation in its midst, so that recomputation comes by it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.norm(self.first(x))))


class Normed(nn.Module):
    """Two blocks and a head; on vectors of 8."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def labelled() -> TensorDataset:
    drawn = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(13, 8, generator=drawn), torch.randint(3, (13,), generator=drawn))


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name.removeprefix("module."): buffer.clone() for name, buffer in model.named_buffers()}


def trained(model: nn.Module, steps: int = 4, rank: int | None = None) -> list[float]:
    """Steps of a plain loop on samples whose mean and spread depend on the rank."""
    rank = dist.get_rank() if rank is None else rank
    drawn = torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        inputs = torch.randn(6, 8, generator=drawn) * (1 + rank) + rank
        loss = functional.cross_entropy(model(inputs).float(), torch.arange(6) % 3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluated_by_hand(model: nn.Module) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        outputs: torch.Tensor = model(labelled().tensors[0]).detach().clone()
    model.train()
    return outputs


def strategy(fields: dict[str, Any], folder: Path) -> Cell:
    """Train, save at once, evaluate by hand, train again, evaluate."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Normed, plan=plan(**fields))
    trained(model)
    own = statistics(model)
    parastrat.save_checkpoint(model, None, folder / "at-once")
    trained(model)
    drifted = statistics(model)
    outputs, by_hand = evaluated_by_hand(model), statistics(model)
    trained(model)
    loss = parastrat.evaluate(model, DataLoader(labelled(), batch_size=4), functional.cross_entropy)
    parastrat.save_checkpoint(model, None, folder / "evaluated")
    return {
        "own": own,
        "drifted": drifted,
        "outputs": outputs,
        "by_hand": by_hand,
        "loss": loss,
        "in_the_end": statistics(model),
    }


def short_format(fields: dict[str, Any]) -> Cell:
    """Losses in fp32 and in bf16-mixed, and the formats of the norms."""
    found: Cell = {}
    for precision in (Precision.FP32, Precision.BF16_MIXED):
        torch.manual_seed(0)
        model = parastrat.auto_parallelize(Normed, plan=plan(**fields, precision=precision))
        found[precision.value] = trained(model)
    norm = next(part for part in model.modules() if isinstance(part, nn.BatchNorm1d))
    found["formats"] = {str(tensor.dtype) for tensor in (norm.weight, norm.bias, norm.running_mean)}
    return found


def averaged(fields: dict[str, Any]) -> list[torch.Tensor]:
    """What copies answer: one made behind steps, and after its buffers were averaged with the model's."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Normed, plan=plan(**fields))
    trained(model)
    other = copy.deepcopy(model)
    answers = [evaluated_by_hand(other)]
    other.eval()
    with torch.no_grad():
        answers.append(other(labelled().tensors[0]).clone())
        trained_on = dict(inner(model).named_buffers())
        for name, buffer in inner(other).named_buffers():
            if buffer.is_floating_point():
                buffer.lerp_(trained_on[name] + dist.get_rank() + 1, 0.5)
        answers.append(other(labelled().tensors[0]).clone())
    return answers


def gradients(fields: dict[str, Any], *, pending: bool) -> list[torch.Tensor]:
    """Gradients of two batches; pending: both go forward before one goes back, as in a pipeline."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Normed, plan=plan(**fields))
    x, y = labelled()[:12]
    losses = []
    for part in (slice(6), slice(6, 12)):
        losses.append(functional.cross_entropy(model(x[part] + dist.get_rank()), y[part]))
        if not pending:
            losses.pop().backward()
    for loss in losses:
        loss.backward()
    found = (parameter.grad for parameter in model.parameters())
    return [part.full_tensor() if isinstance(part, DTensor) else part for part in found]


def every_cell(folder: Path, strategies: dict[str, dict[str, Any]]) -> Cell:
    found: Cell = {}
    for name, fields in strategies.items():
        found[name] = strategy(fields, folder / name)
        found[f"{name}-short"] = short_format(fields)
        if name != "ddp":  # which sends its buffers in sight of autograd, and refuses
            found[f"{name}-averaged"] = averaged(fields)
            found[f"{name}-pending"] = [gradients(fields, pending=pending) for pending in (True, False)]
    return found
