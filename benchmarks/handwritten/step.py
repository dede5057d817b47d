"""One optimizer step's forward and backward by hand, the same under every wrapper."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import nn

MICRO_BATCH = 2


def forward_backward(
    model: nn.Module,
    share: tuple[torch.Tensor, torch.Tensor],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    reducing: Callable[[nn.Module, bool], AbstractContextManager[None]],
) -> torch.Tensor:
    """Accumulate the gradients of the mean loss over the global batch; return that mean."""
    device = next(model.parameters()).device
    starts = range(0, len(share[0]), MICRO_BATCH)
    micro_batches = [tuple(side[start : start + MICRO_BATCH] for side in share) for start in starts]
    counts = [int((targets != -100).sum().item()) for _, targets in micro_batches]
    total = torch.tensor(sum(counts), device=device)
    dist.all_reduce(total)
    targets_of_all_ranks = int(total.item())
    mean = torch.zeros((), device=device)
    for index, ((inputs, targets), count) in enumerate(zip(micro_batches, counts, strict=True)):
        with reducing(model, index == len(micro_batches) - 1):
            loss = loss_fn(model(inputs.to(device)), targets.to(device))
            weight = count / targets_of_all_ranks
            (loss * (weight * dist.get_world_size())).backward()
            mean += loss.detach() * weight
    dist.all_reduce(mean)
    return mean
