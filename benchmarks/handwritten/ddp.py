"""DDP by hand."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from handwritten.step import accumulate

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Replicate; the model has no buffers that change, so that none are sent again."""
    wrapped = DistributedDataParallel(
        model.to(device),
        device_ids=None if device.type == "cpu" else [device.index],
        gradient_as_bucket_view=True,
    )
    wrapped.broadcast_buffers = False
    return wrapped


def reducing(model: nn.Module, last: bool) -> AbstractContextManager[None]:
    """Reduce gradients with the last micro-batch."""
    assert isinstance(model, DistributedDataParallel)
    return nullcontext() if last else model.no_sync()


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """All ranks see different samples."""
    return accumulate(model, share, loss_fn, reducing=reducing, data=dist.group.WORLD)
