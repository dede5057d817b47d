"""FSDP2 over divided layers by hand, as torchtitan has it: first the styles, then the shards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from handwritten.fsdp2 import reducing
from handwritten.step import accumulate
from handwritten.tp import divide

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share

DEGREE = 2
_groups: list[dist.ProcessGroup] = []


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Divide over pairs of neighbours, and shard over the others; every block a unit, the rest the root."""
    shape = (dist.get_world_size() // DEGREE, DEGREE)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp_shard", "tp"))
    divide(model.to(device), mesh["tp"])
    policy = MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp_shard"], reshard_after_forward=True, mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], reshard_after_forward=False, mp_policy=policy)
    _groups[:] = [mesh["dp_shard"].get_group()]
    return model


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """FSDP2 adds up the norms' gradients over ``tp`` itself, before it reduces them."""
    return accumulate(model, share, loss_fn, reducing=reducing, data=_groups[0])
