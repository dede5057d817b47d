"""What the ranks of test_divided do: stages whose layers are divided over tensor-parallel ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from drawn import drawn
from runtime.models import plan, token_loss, tokens
from runtime.pipeline.stages import several
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

import parastrat
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.runtime.logits import cross_entropies_computed
from parastrat.runtime.wrapping import wrapping_of

#: samples of one step: the last of four micro-batches has one only
SAMPLES = 7
BOTH = {"pp": 2, "tp": 2}
SEQUENCE, LOSS = {"sequence_parallel": True}, {"loss_parallel": True}

#: ZBV has both owners of the tied weight on one rank
_ALL: dict[str, dict[str, Any]] = {
    "1F1B": BOTH | SEQUENCE,
    "ZBV": BOTH | LOSS | several(PipelineSchedule.ZBV),
    "recompute": BOTH
    | SEQUENCE
    | LOSS
    | several(PipelineSchedule.INTERLEAVED)
    | {"recompute": Recompute.FULL},
}
CELLS = {name: _ALL[name] for name in ("1F1B", *drawn(["ZBV", "recompute"], 1))}


class Layer(nn.Module):
    """Attention with three projections; local shares of heads need no sizes of the whole."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.inner, self.outer = nn.Dropout(drop), nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (part(y).unflatten(-1, (-1, 4)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.outer(self.down(self.inner(functional.gelu(self.up(self.norm2(x))))))


class Small(nn.Module):
    """A language model with tied embeddings."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 16)
        self.layers = nn.ModuleList(Layer(drop) for _ in range(2))
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 64, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def uneven(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first micro-batch has no targets, the second a few."""
    x, y = tokens(step, SAMPLES, vocab=64)
    y[:2] = -100
    y[2, 3:] = -100
    return x, y


def share_of(batch: tuple[torch.Tensor, torch.Tensor], model: nn.Module) -> tuple[torch.Tensor, ...]:
    """This rank's samples; all ranks of a stage with the same data have the same."""
    wrapping = wrapping_of(model)
    return tuple(side[wrapping.mesh.dp_rank :: wrapping.plan.mesh.dp] for side in batch)


def wrapped(fields: dict[str, Any], seed: int = 3, **more: Any) -> nn.Module:
    torch.manual_seed(seed)
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    chosen = plan(**{"gradient_accumulation_steps": 4 // ranks, **fields})
    return parastrat.auto_parallelize(Small, plan=chosen, **more)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[tuple[float, float]]:
    """Losses, and norms of the gradients, which are clipped."""
    found = []
    for step in steps:
        x, y = share_of(uneven(step), model)
        loss = parastrat.forward_backward(model, x, y, loss_fn=token_loss)
        found.append((loss.item(), parastrat.clip_grad_norm_(model, 0.5).item()))
        optimizer.step()
        optimizer.zero_grad()
    return found


def run(fields: dict[str, Any]) -> tuple[list[tuple[float, float]], str, int]:
    """Train; return also what is said of the wrapping, and the cross entropies of divided logits."""
    model, before = wrapped(fields), cross_entropies_computed()
    found = trained(model, torch.optim.AdamW(model.parameters(), lr=1e-2), range(3))
    return found, "\n".join(wrapping_of(model).calls), cross_entropies_computed() - before


def resumed(fields: dict[str, Any], folder: Path, load: str, save: str) -> list[tuple[float, float]]:
    """Load, take two steps, save."""
    model = wrapped(fields, seed=7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = parastrat.load_checkpoint(model, optimizer, folder / load)["step"] if load else 0
    found = trained(model, optimizer, range(step, step + 2))
    parastrat.save_checkpoint(model, optimizer, folder / save, extra={"step": step + 2})
    return found


def evaluated(fields: dict[str, Any], path: Path) -> float:
    """A metric with weights of a file."""
    x, y = uneven(0)
    model = wrapped(fields, seed=9, checkpoint=path)
    return parastrat.evaluate(model, [(x[:3], y[:3]), (x[3:], y[3:])], token_loss)


def dropping() -> dict[str, Any]:
    """Losses, whole weights as this rank has them, and what the first layer here dropped at last."""
    torch.manual_seed(0)
    built = Small(drop=0.5)
    seen: dict[str, torch.Tensor] = {}
    for layer in built.layers:
        for name in ("inner", "outer"):
            part = layer.get_submodule(name)
            part.register_forward_hook(lambda _m, _a, out, name=name: seen.update({name: out == 0}))
    model = parastrat.auto_parallelize(built, plan=plan(**BOTH, gradient_accumulation_steps=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        torch.manual_seed(100 * dist.get_rank() + step)  # the ranks' generators differ
        losses.append(parastrat.forward_backward(model, *tokens(step, 4), loss_fn=token_loss).item())
        optimizer.step()
        optimizer.zero_grad()
    held = [p.data for p in model.parameters()]
    whole = [w for w in held if isinstance(w, DTensor) and w.placements[0].is_replicate()]
    return {"losses": losses, "whole": [float(w.to_local().sum()) for w in whole], **seen}


def on_four(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {name: run(fields) for name, fields in CELLS.items()}
    found["resumed"] = resumed(BOTH, folder, "single", "divided")
    found["evaluated"] = evaluated(BOTH, folder / "plain.pt")
    found["dropping"] = dropping()
    return found
