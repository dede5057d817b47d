"""HSDP by hand: FSDP2 over a mesh of two axes; replicas join with the last micro-batch."""

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

REPLICAS = 2


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Shard within each replica in fp32."""
    shape = (REPLICAS, dist.get_world_size() // REPLICAS)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp_replicate", "dp_shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True, mp_policy=MixedPrecisionPolicy())
    fully_shard(model, mesh=mesh, reshard_after_forward=False, mp_policy=MixedPrecisionPolicy())
    return model


@contextmanager
def reducing(model: nn.Module, last: bool) -> Iterator[None]:
    """Add up over the replicas once a step."""
    assert isinstance(model, FSDPModule)
    model.set_is_last_backward(last)
    model.set_requires_all_reduce(last)
    yield
    model.set_is_last_backward(True)
    model.set_requires_all_reduce(True)


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """All ranks see different samples."""
    return accumulate(model, share, loss_fn, reducing=reducing, data=dist.group.WORLD)
