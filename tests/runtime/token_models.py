"""Models of tokens, trained under a plan whose ranks see parts of one batch, and alone in plain torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.cells import Weights, whole
from runtime.models import plan, token_loss, tokens
from torch import nn

import parastrat
from parastrat.plan import Shard
from parastrat.runtime.wrapping import wrapping_of

#: samples of one step, over all ranks, their positions, and what these are drawn from
BATCH, LENGTH, VOCABULARY = 4, 16, 64
STEPS = 3

Trained = tuple[list[float], Weights]
#: losses, and the gradients' norms
Steps = list[tuple[float, float]]


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets, of which the samples have different numbers that count."""
    x, y = tokens(step, BATCH, vocab=VOCABULARY)
    y = y.clone()
    for sample in range(BATCH):
        y[sample, : 3 * sample] = -100
    return x[:, :LENGTH], y[:, :LENGTH]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)


def steps_alone(model: nn.Module, tail: int = 0) -> Steps:
    """Train in one process in plain torch."""
    optimizer, found = adam(model), []
    for step in range(STEPS):
        x, y = batch(step)
        loss = token_loss(model(x), y[:, -tail:] if tail else y)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), float(norm)))
    return found


def alone(build: Callable[[], nn.Module], tail: int = 0) -> Trained:
    """Train in one process in plain torch; return the losses, and the weights at last."""
    torch.manual_seed(3)
    model = build()
    losses = [loss for loss, _ in steps_alone(model, tail)]
    return losses, {name: value.detach().clone() for name, value in model.state_dict().items()}


def wrapped(build: Callable[[], nn.Module], sample_inputs: Any = None, **fields: Any) -> nn.Module:
    """A model under a plan of micro-batches of two samples."""
    ranks = fields.get("dp_replicate", 1) * fields.get("dp_shard", 1)
    torch.manual_seed(3)
    usual = {"gradient_accumulation_steps": BATCH // 2 // ranks, "shard": Shard.PARAMETERS}
    chosen = plan(**{**usual, **fields})
    return parastrat.auto_parallelize(build(), plan=chosen, sample_inputs=sample_inputs)


def share(model: nn.Module, step: int, tail: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    mesh = wrapping_of(model).plan.mesh
    own, rank = BATCH // mesh.dp, wrapping_of(model).mesh.dp_rank
    x, y = batch(step)
    return x[own * rank :][:own], (y[:, -tail:] if tail else y)[own * rank :][:own]


def steps_of(model: nn.Module, tail: int = 0) -> Steps:
    """Train a wrapped model."""
    optimizer, found = adam(model), []
    for step in range(STEPS):
        loss = parastrat.forward_backward(model, *share(model, step, tail), loss_fn=token_loss)
        norm = parastrat.clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        found.append((loss.item(), float(norm)))
    return found


def trained(build: Callable[[], nn.Module], tail: int = 0, **fields: Any) -> Trained:
    model = wrapped(build, **fields)
    losses = [loss for loss, _ in steps_of(model, tail)]
    return losses, whole(model)


def by_hand(build: Callable[[], nn.Module], **fields: Any) -> Trained:
    """A loop as for one process: logits are whole, and so is the loss."""
    model = wrapped(build, micro_batch_size=BATCH, gradient_accumulation_steps=1, **fields)
    optimizer, losses = adam(model), []
    for step in range(STEPS):
        x, y = share(model, step)
        loss = token_loss(model(x), y)
        loss.backward()
        parastrat.clip_grad_norm_(model, 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, whole(model)


def calls_of(model: nn.Module) -> str:
    return "\n".join(wrapping_of(model).calls)


def saved(model: nn.Module, folder: Path, other: nn.Module) -> float:
    """How far weights are from those that were saved, in a model that began with others."""
    parastrat.save_checkpoint(model, None, folder)
    before = whole(model)
    parastrat.load_checkpoint(other, None, folder)
    after = whole(other)
    return max(float((after[name] - value).abs().max()) for name, value in before.items())


def spoiled(module: nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        nn.init.constant_(parameter, 0.5)


def check(every_rank: list[Trained], expected: Trained) -> None:
    """Compare what ranks trained with what one process did."""
    for losses, weights in every_rank:
        assert losses == pytest.approx(expected[0], abs=1e-5)
        for name, value in expected[1].items():
            assert (weights[name].float() - value.float()).abs().max() <= 1e-5, name
