"""FSDP2 over divided layers by hand: first each rank's own tensors, then the shards of these."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from handwritten.fsdp2 import reducing
from handwritten.step import accumulate
from handwritten.tp import add_up, divide

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share

DEGREE = 2
_groups: list[dist.ProcessGroup] = []
#: names of what each rank has whole: parameters are others once they are sharded
_whole: list[str] = []


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Divide over pairs of neighbours, and shard over the others; every block a unit, the rest the root."""
    shape = (dist.get_world_size() // DEGREE, DEGREE)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("dp_shard", "tp"))
    whole = divide(model.to(device), mesh["tp"].get_group())
    _whole[:] = [name for name, weight in model.named_parameters() if any(weight is each for each in whole)]
    policy = MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh["dp_shard"], reshard_after_forward=True, mp_policy=policy)
    fully_shard(model, mesh=mesh["dp_shard"], reshard_after_forward=False, mp_policy=policy)
    _groups[:] = [mesh["dp_shard"].get_group(), mesh["tp"].get_group()]
    return model


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """The norms saw a share of the positions each."""
    data, divided = _groups
    mean = accumulate(model, share, loss_fn, reducing=reducing, data=data)
    add_up([model.get_parameter(name).grad.to_local() for name in _whole], divided)
    return mean
