"""Tensor parallelism by hand, with torch's own styles: divided between norms, the sequence divided between.

The logits are gathered (no loss parallelism), as the plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from handwritten.step import accumulate

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share


def divide(model: nn.Module, mesh: DeviceMesh) -> None:
    """Divide heads, features, vocabulary and, between them, positions."""
    positions = Shard(1)
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=positions),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=positions, output_layouts=Replicate()),
    }
    for index in range(len(model.blocks)):
        name = f"blocks.{index}"
        # gathered once for the layers that read it
        whole = PrepareModuleInput(input_layouts=(positions,), desired_input_layouts=(Replicate(),))
        plan |= {f"{name}.{norm}": SequenceParallel() for norm in ("attention_norm", "feed_norm")}
        plan |= {f"{name}.attention": whole, f"{name}.feed": whole}
        columns = ("attention.q", "attention.k", "attention.v", "feed.gate", "feed.up")
        plan |= {f"{name}.{column}": ColwiseParallel() for column in columns}
        rows = ("attention.out", "feed.down")
        plan |= {f"{name}.{row}": RowwiseParallel(output_layouts=positions) for row in rows}
    parallelize_module(model, mesh, plan)


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Divide over all ranks."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    divide(model.to(device), mesh)
    return model


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """All ranks see the same samples; the norms saw a share of the positions each."""
    mean = accumulate(model, share, loss_fn)
    summed = [parameter for parameter in model.parameters() if parameter.grad.placements == (Partial(),)]
    shares = [parameter.grad.to_local() for parameter in summed]
    # one message a step; left as they are, the optimizer would add them up in each of its operators
    flat = torch.cat([each.flatten() for each in shares])
    dist.all_reduce(flat)
    parts = flat.split([each.numel() for each in shares])
    for parameter, part in zip(summed, parts, strict=True):
        whole = part.view(parameter.shape)
        parameter.grad = DTensor.from_local(whole, parameter.device_mesh, [Replicate()], run_check=False)
    # torch leaves the embedding's gradient whole; likewise the optimizer would divide it each time
    grad = model.embedding.weight.grad
    model.embedding.weight.grad = grad.redistribute(placements=model.embedding.weight.placements)
    return mean
