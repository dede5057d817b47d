"""How the ranks train models in stages under emitted code and under auto_parallelize."""

from __future__ import annotations

import os
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from emit.divided import VOCABULARY, decoder, llama
from emit.messages import Messages
from runtime.uncompared import uncompared
from torch import nn
from torch.nn.functional import cross_entropy, linear

import parastrat

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from parity_models import SUBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.plan import Plan

STEPS = 3
#: dimensions of targets that are maps: samples, rows and columns
MAPS = 3


class Layer(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(16, 16), nn.Dropout(rate)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.linear(x).relu())


class Layers(nn.Module):
    """Layers of one width behind tokens and positions; ``oddity`` is what few lines do not say."""

    def __init__(self, oddity: str = "", rate: float = 0.0) -> None:
        super().__init__()
        self.oddity = oddity
        self.embed, self.place = nn.Embedding(VOCABULARY, 16), nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(Layer(rate) for _ in range(6))
        self.head = nn.Identity() if oddity == "functional" else nn.Linear(16, VOCABULARY)
        if oddity == "tied":
            self.head.weight = self.embed.weight
        if oddity == "beside":
            self.scale = nn.Parameter(torch.ones(()))
        self.norm = nn.BatchNorm1d(16) if oddity == "normed" else nn.Identity()
        if oddity == "lists":
            self.more = nn.ModuleList(Layer(rate) for _ in range(6))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = first = self.embed(input=tokens) + self.place(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        again = {"shared": self.blocks, "lists": getattr(self, "more", ())}.get(self.oddity, ())
        for block in [*self.blocks, *again]:
            x = block(x) * 2 / (block.dropout.p + 2 if self.oddity == "counted" else 2)
        if self.oddity == "skips":
            x = x + first
        if self.oddity == "functional":
            return linear(x, self.embed.weight)
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return (self.head(x), x) if self.oddity == "pairs" else self.head(x)


def layers() -> nn.Module:
    return Layers()


def dropping() -> nn.Module:
    return Layers(rate=0.2)


def vectors() -> nn.Module:
    """Blocks right in the model, of samples without positions."""
    return nn.Sequential(*(Layer(0.0) for _ in range(4)))


class Two(Layers):
    """Two inputs, of which both pass all blocks."""

    def sample_inputs(self, samples: int, length: int | None) -> tuple[torch.Tensor, ...]:
        ids = torch.zeros(samples, length or 16, dtype=torch.long)
        return ids, ids

    def forward(self, tokens: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) + super().forward(others)


tied = partial(Layers, "tied")
beside, normed, lists, shared = (partial(Layers, odd) for odd in ("beside", "normed", "lists", "shared"))
counted, skips, functional, pairs = (
    partial(Layers, odd) for odd in ("counted", "skips", "functional", "pairs")
)
#: several tensors pass between their stages, or of several shapes
OTHERS = ("resnet", "unet", "lstm", "vit", "t5")
resnet, unet, lstm, vit, t5 = (SUBJECTS[name].build for name in OTHERS)
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{name: SUBJECTS[name].build for name in OTHERS},
    "skips": skips,
    "lists": lists,
    "normed": normed,
    "llama": llama,
    "decoder": decoder,
    "layers": layers,
    "dropping": dropping,
    "tied": tied,
    "vectors": vectors,
}


def summed(logits: torch.Tensor, targets: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
    if targets.ndim == MAPS:
        return cross_entropy(logits, targets, reduction=reduction)
    return cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction=reduction)


def mean(output: Any, targets: torch.Tensor) -> torch.Tensor:
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return summed(logits.float(), targets, "mean")


def batches(name: str, plan: Plan, place: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and targets of one place among the data ranks, of which some predict nothing."""
    found = []
    for number in range(STEPS):
        drawn = torch.Generator().manual_seed(10 * number + place)
        samples = plan.micro_batch_size * plan.gradient_accumulation_steps
        if name in OTHERS:
            inputs, targets = SUBJECTS[name].batch(10 * number + place, samples)
            # one tensor goes in as it is
            found.append((next(iter(inputs.values())) if name in ("resnet", "vit") else inputs, targets))
            continue
        ids = torch.randint(VOCABULARY, (samples, 17), generator=drawn)
        inputs, targets = ids[:, :-1], ids[:, 1:].clone()
        targets[0, : 4 + place] = -100
        if name == "vectors":
            inputs, targets = inputs / VOCABULARY, targets[:, 0] % 16
        found.append((inputs, targets))
    return found


def trained(
    parts: Any, step: Callable[..., torch.Tensor], given: list[tuple[torch.Tensor, torch.Tensor]]
) -> dict[str, Any]:
    """Some steps."""
    losses, messages = [], []
    optimizer = torch.optim.SGD(parts.parameters(), lr=0.1)  # which sees how large gradients are
    torch.manual_seed(1)  # of what is dropped
    for inputs, targets in given:
        with Messages() as sent:
            losses.append(step(inputs, targets).item())
        optimizer.step()
        optimizer.zero_grad()
        messages.append(sorted(sent.seen))
    # with the first step, auto_parallelize compares what the ranks of a pipeline are given
    saved = parts.state_dict()
    return {
        "losses": losses,
        "messages": messages[1:],
        "keys": sorted(saved),
        "statistics": {key: value.tolist() for key, value in saved.items() if "running_" in key},
    }


def both_ways(name: str, text: str, plan: Plan) -> tuple[dict[str, Any], dict[str, Any]]:
    """Emitted code, then auto_parallelize. Ranks draw other weights; rank 0's must win."""
    warnings.simplefilter("ignore")
    rank, mesh = int(os.environ["RANK"]), plan.mesh
    given = batches(name, plan, rank // mesh.tp % mesh.dp)
    names: dict[str, Any] = {}
    exec(compile(text, "parallelize.py", "exec"), names)  # noqa: S102 - the emitted code is what is tested
    torch.manual_seed(rank)
    pipeline = names["parallelize"](MODELS[name](), names["build_mesh"](), summed)
    emitted = trained(pipeline, pipeline.step, given)
    torch.manual_seed(rank)
    # ranks are compared after their first steps, which emitted code leaves out
    with uncompared():
        model = parastrat.auto_parallelize(MODELS[name](), plan=plan)
    ours = trained(
        model,
        lambda inputs, targets: parastrat.forward_backward(model, inputs, targets, loss_fn=mean),
        given,
    )
    dist.barrier()
    return emitted, ours
