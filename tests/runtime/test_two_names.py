"""Parts of a model that are registered under two names, as the embeddings of encoder and decoder."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.distributed.tensor import DTensor

import parastrat

#: what the checkpoint is of, and what it is loaded into
MESHES = {"ddp": {"dp_replicate": 2}, "fsdp2": {"dp_shard": 2}}


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.again = self.first
        self.last = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.again(self.first(x)))
        return out


def whole(model: nn.Module) -> dict[str, list[float]]:
    parts = ((name.removeprefix("module."), each.detach()) for name, each in model.named_parameters())
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).flatten().tolist()
        for name, each in parts
    }


def wrapped(mesh: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = parastrat.auto_parallelize(Shared(), plan=plan(**MESHES[mesh]))
    return model, torch.optim.AdamW(model.parameters())


def saved_and_loaded(folder: str) -> dict[str, bool]:
    found = {}
    for source in MESHES:
        model, optimizer = wrapped(source)
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        path = Path(folder) / source
        parastrat.save_checkpoint(model, optimizer, path)
        for target in MESHES:
            other, its_optimizer = wrapped(target)
            parastrat.load_checkpoint(other, its_optimizer, path)
            found[f"{source} to {target}"] = whole(other) == whole(model) != whole(wrapped(target)[0])
    dist.barrier()
    return found


@pytest.mark.slow
def test_checkpoints_go_from_any_plan_to_any() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for found in on_ranks(2, saved_and_loaded, folder):
            assert found == dict.fromkeys(found, True)
            assert len(found) == len(MESHES) ** 2
