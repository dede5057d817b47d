"""FSDP2 by hand: every block a unit, the rest in the root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from handwritten.step import accumulate

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Shard over all ranks in fp32."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy())
    # backward begins with the root's parameters: freeing them after forward would gather them again at once
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=MixedPrecisionPolicy())
    return model


@contextmanager
def reducing(model: nn.Module, last: bool) -> Iterator[None]:
    """Reduce into shards with each micro-batch; wait for the reductions in the last one's backward."""
    assert isinstance(model, FSDPModule)
    model.set_is_last_backward(last)
    yield
    model.set_is_last_backward(True)


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """All ranks see different samples."""
    return accumulate(model, share, loss_fn, reducing=reducing, data=dist.group.WORLD)
