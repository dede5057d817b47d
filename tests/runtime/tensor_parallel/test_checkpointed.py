"""Checkpoints of a module's own code under tp: what runs again computes with the same shares."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.ranks import on_ranks
from runtime.training import MODELS
from torch import nn
from torch.utils.checkpoint import checkpoint

import parastrat
from parastrat.plan import Plan

pytestmark = pytest.mark.slow


class Block(nn.Module):
    """It runs all but its norm once more in backward, by a method that no hook is around."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(16), nn.LayerNorm(16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale = nn.Parameter(torch.ones(16))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.inner(x)).relu()) * self.scale  # type: ignore[no-any-return]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again: torch.Tensor = checkpoint(self.body, self.norm(x), use_reentrant=False)
        return x + again


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)  # type: ignore[no-any-return]


def llama() -> nn.Module:
    model = MODELS["llama"][0]()
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # transformers 5 renames it
        model.gradient_checkpointing_enable()
    return model.train()


def built(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return llama() if kind == "transformers" else Stack()


def batch(kind: str, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step)
    if kind == "transformers":
        return torch.randint(0, 61, (4, 8), generator=draw)
    return torch.randn(4, 8, 8, generator=draw)


def losses(kind: str, chosen: Plan | None) -> list[float]:
    model = built(kind)
    example = batch(kind, 0)[:1]
    if chosen is not None:
        model = parastrat.auto_parallelize(model, plan=chosen, sample_inputs=example)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shards = 1 if chosen is None else chosen.mesh.dp
    found = []
    for step in range(3):
        rank = 0 if shards == 1 else dist.get_rank() // chosen.mesh.tp  # type: ignore[union-attr]
        output = model(batch(kind, step).chunk(shards)[rank])
        loss = (output if isinstance(output, torch.Tensor) else output.logits).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        if shards > 1:
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
        found.append(float(mean))
    return found


@pytest.mark.parametrize("kind", ["plain", "transformers"])
@pytest.mark.parametrize(
    "chosen",
    [plan(tp=2), plan(tp=2, sequence_parallel=True), plan(tp=2, dp_shard=2)],
    ids=["tp", "sequence", "fsdp2+tp"],
)
def test_what_runs_again_is_divided_alike(kind: str, chosen: Plan) -> None:
    expected = losses(kind, None)
    for own in on_ranks(chosen.mesh.world_size, losses, kind, chosen):
        assert own == pytest.approx(expected, rel=1e-4)
