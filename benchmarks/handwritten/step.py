"""One optimizer step's forward and backward by hand, the same under every wrapper but pipelines."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

if TYPE_CHECKING:
    Share = tuple[torch.Tensor, torch.Tensor]
    LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    Reducing = Callable[[nn.Module, bool], AbstractContextManager[None]]

MICRO_BATCH = 2


def at_once(_model: nn.Module, _last: bool) -> AbstractContextManager[None]:
    """Nothing is reduced, or with each micro-batch."""
    return nullcontext()


def accumulate(
    model: nn.Module,
    share: Share,
    loss_fn: LossFunction,
    *,
    reducing: Reducing = at_once,
    data: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Accumulate the gradients of the mean loss over the global batch; return that mean.

    ``data`` are the ranks that see different samples; None: all see the same.
    """
    device = next(model.parameters()).device
    micro_batches = split(share)
    counts = [int((targets != -100).sum().item()) for _, targets in micro_batches]
    total = torch.tensor(sum(counts), device=device)
    if data is not None:
        dist.all_reduce(total, group=data)
    targets_of_all_ranks = int(total.item())
    ranks = 1 if data is None else dist.get_world_size(data)
    mean = torch.zeros((), device=device)
    for index, ((inputs, targets), count) in enumerate(zip(micro_batches, counts, strict=True)):
        with reducing(model, index == len(micro_batches) - 1):
            loss = loss_fn(model(inputs.to(device)), targets.to(device))
            weight = count / targets_of_all_ranks
            (loss * (weight * ranks)).backward()
            mean += loss.detach() * weight
    if data is not None:
        dist.all_reduce(mean, group=data)
    return mean


def split(share: Share) -> list[Share]:
    """Return the micro-batches of a rank's share."""
    inputs, targets = share
    starts = range(0, len(inputs), MICRO_BATCH)
    return [(inputs[start : start + MICRO_BATCH], targets[start : start + MICRO_BATCH]) for start in starts]
