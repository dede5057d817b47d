"""What the ranks of test_mixtures do; one start of the processes runs them all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runtime.cells import Weights, whole
from runtime.models import plan, token_loss, tokens
from runtime.tensor_parallel.models import Tiny
from torch import nn
from torch.distributed.tensor import DTensor

import parastrat
from parastrat.plan import Recompute
from parastrat.runtime.wrapping import wrapping_of
from parastrat.workload import Precision

#: samples of one step, over all ranks
BATCH = 8
VOCABULARY = 64


def share(fields: dict[str, Any], step: int, model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    own, rank = BATCH // ranks, wrapping_of(model).mesh.dp_rank
    x, y = tokens(step, BATCH, vocab=VOCABULARY)
    return x[own * rank :][:own], y[own * rank :][:own]


def wrapped(fields: dict[str, Any], build: Callable[[], nn.Module] = Tiny, **keywords: Any) -> nn.Module:
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    chosen = plan(**{"gradient_accumulation_steps": BATCH // 2 // ranks, **fields})
    torch.manual_seed(keywords.pop("seed", 3))
    module = build() if keywords.pop("built", False) else build
    return parastrat.auto_parallelize(module, plan=chosen, **keywords)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer that makes no step of rounding: the gradient of a key bias is nothing else."""
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def trained(
    model: nn.Module, optimizer: torch.optim.Optimizer, fields: dict[str, Any], steps: range
) -> tuple[list[float], list[float]]:
    """Losses and norms of the gradients, which are clipped."""
    losses, norms = [], []
    for step in steps:
        x, y = share(fields, step, model)
        losses.append(parastrat.forward_backward(model, x, y, loss_fn=token_loss).item())
        norms.append(float(parastrat.clip_grad_norm_(model, 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms


def run(fields: dict[str, Any], **keywords: Any) -> tuple[list[float], list[float]]:
    model = wrapped(fields, **keywords)
    return trained(model, adam(model), fields, range(3))


def resumed(fields: dict[str, Any], folder: Path, save_as: str) -> list[float]:
    """Load what one process saved after two steps, train on, save."""
    model = wrapped(fields, seed=7)
    optimizer = adam(model)
    extra = parastrat.load_checkpoint(model, optimizer, folder / "single")
    assert extra == {"step": 2}
    losses, _ = trained(model, optimizer, fields, range(2, 5))
    parastrat.save_checkpoint(model, optimizer, folder / save_as, extra={"step": 5})
    return losses


def of_a_file(fields: dict[str, Any], folder: Path) -> Weights:
    return whole(wrapped(fields, seed=dist.get_rank(), checkpoint=folder / "plain.pt"))


def of_a_folder(fields: dict[str, Any], folder: Path) -> Weights:
    return whole(wrapped(fields, seed=dist.get_rank(), checkpoint=folder / "single"))


def of_a_built_model(fields: dict[str, Any]) -> Weights:
    return whole(wrapped(fields, built=True, seed=dist.get_rank()))


def evaluated(model: nn.Module) -> float:
    x, y = tokens(0, 6, vocab=VOCABULARY)
    loader = [(x[:3], y[:3]), (x[3:], y[3:])]
    return parastrat.evaluate(model, loader, token_loss)


VARIANTS: dict[str, dict[str, Any]] = {
    "fp32": {},
    **{p.value: {"precision": p} for p in (Precision.BF16_MIXED, Precision.BF16, Precision.FP16_MIXED)},
    **{r.value: {"recompute": r} for r in (Recompute.FULL, Recompute.SELECTIVE, Recompute.ATTENTION)},
}


def every_cell(
    fields: dict[str, Any], folder: Path, variants: list[str], *, starts: bool
) -> dict[str, Any]:
    """Answer every question with as few wraps as there are ways to begin."""
    found: dict[str, Any] = {name: run(fields | VARIANTS[name]) for name in variants}
    found["saved_as"] = "-".join(fields)
    found["resumed"] = resumed(fields, folder, found["saved_as"])
    if starts:
        found["file"] = of_a_file(fields, folder)
        found["folder"] = of_a_folder(fields, folder)
        found["built"] = of_a_built_model(fields)
    model = wrapped(fields | {"recompute": Recompute.FULL})
    found["keys"], found["initial"] = list(model.state_dict()), whole(model)
    found["dtensors"] = all(isinstance(parameter, DTensor) for parameter in model.parameters())
    found["evaluated"] = evaluated(model)
    return found
