"""Parameters without a dimension beside FSDP2, which takes none: whole on every rank, and trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan
from runtime.ranks import on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule
from parastrat.runtime.wrapped import inner

STEPS = 3
HSDP = {"dp_shard": 2, "dp_replicate": 2}
STAGES = {"pp": 2, "dp_shard": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inside = nn.LayerNorm(8), nn.Linear(8, 8)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * torch.tanh(self.inside(self.norm(x)))


class Scaled(nn.Module):
    """As CLIP: a temperature; and one number that nothing reads, one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(8, 4)
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.unread = nn.Parameter(torch.tensor(3.0))
        self.fixed = nn.Parameter(torch.tensor(1.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale.exp() * self.fixed


def batch(step: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last two samples have no targets."""
    drawn = torch.Generator().manual_seed(step)
    targets = torch.randint(4, (samples,), generator=drawn)
    targets[-2:] = -100
    return torch.randn(samples, 8, generator=drawn), targets


def share(step: int, ranks: int) -> tuple[torch.Tensor, ...]:
    own = dist.get_rank() % ranks if ranks > 1 else 0
    return tuple(side[own * 8 // ranks : (own + 1) * 8 // ranks] for side in batch(step, 8))


def trained(fields: dict[str, Any], folder: Path | None = None) -> list[dict[str, float]]:
    """Of each step: the loss, the norm of all gradients, and those of single numbers."""
    torch.manual_seed(0)
    ranks = fields.get("dp_shard", 1) * fields.get("dp_replicate", 1)
    chosen = plan(**{"gradient_accumulation_steps": 4 // ranks, **fields})
    model = parastrat.auto_parallelize(Scaled(), plan=chosen, sample_inputs=batch(0, 2)[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        loss = parastrat.forward_backward(model, *share(step, ranks), loss_fn=functional.cross_entropy)
        seen = {"loss": loss.item(), "norm": parastrat.clip_grad_norm_(model, 0.5).item()}
        found.append(seen | gradients(model))
        optimizer.step()
        optimizer.zero_grad()
        if folder is not None and step == 0:
            parastrat.save_checkpoint(model, optimizer, folder)
            parastrat.load_checkpoint(model, optimizer, folder)
    return found


def plain() -> dict[str, float]:
    """Gradients of a bare loop's two backwards."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(Scaled(), plan=plan(dp_shard=2))
    x, y = batch(0, 8)
    x, y = (side[2 * dist.get_rank() :] for side in (x, y))
    for start in (0, 4):
        loss = functional.cross_entropy(model(x[start : start + 2]), y[start : start + 2], reduction="sum")
        loss.backward()
    return gradients(model)


def gradients(model: nn.Module) -> dict[str, float]:
    """Those of single numbers."""
    held = {name: each.grad for name, each in inner(model).named_parameters() if each.dim() == 0}
    return {name: gradient.item() for name, gradient in held.items() if gradient is not None}


def on_two(folder: Path) -> tuple[Any, Any]:
    return trained({"dp_shard": 2}, folder), plain()


def on_four() -> dict[str, Any]:
    return {"hsdp": trained(HSDP), "pp x fsdp2": trained({**STAGES, "reshard_after_forward": False})}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return on_ranks(2, on_two, tmp_path_factory.mktemp("scalars"))


def check(ranks: list[list[dict[str, float]]]) -> None:
    expected = trained({})
    for found in ranks:
        for step, alone in zip(found, expected, strict=True):
            # terms of a gradient may cancel, which leaves the rounding of terms near 1
            assert step == pytest.approx({name: alone[name] for name in step}, rel=1e-4, abs=1e-7)
    seen = {name for found in ranks for name in found[0]}
    assert seen == set(expected[0])


@pytest.mark.slow
def test_single_numbers_are_trained_as_by_one_process(two: list[Any]) -> None:
    check([trained for trained, _ in two])


@pytest.mark.slow
def test_a_plain_loop_averages_them(two: list[Any]) -> None:
    torch.manual_seed(0)
    model = Scaled()
    x, y = batch(0, 8)
    (functional.cross_entropy(model(x), y, reduction="sum") / 2).backward()
    for _, found in two:
        assert found == pytest.approx(gradients(model), rel=1e-4)


@pytest.mark.slow
def test_single_numbers_of_replicas_and_stages() -> None:
    ranks = on_ranks(4, on_four)
    for cell in ("hsdp", "pp x fsdp2"):
        check([rank[cell] for rank in ranks])
