"""A pipeline by hand: 1F1B over stages that hold their own blocks alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from handwritten.decoder import VOCABULARY, WIDTH
from handwritten.step import MICRO_BATCH, split

if TYPE_CHECKING:
    from handwritten.step import LossFunction, Share


@dataclass
class Loss:
    """The mean over all targets of a step, which the last stage adds up micro-batch by micro-batch."""

    loss_fn: LossFunction
    counts: list[int]
    mean: torch.Tensor
    done: int = 0

    def __call__(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weight = self.counts[self.done] / sum(self.counts)
        self.done += 1
        loss = self.loss_fn(output, targets)
        self.mean += loss.detach() * weight
        return loss * weight


_steps: dict[torch.Size, tuple[Schedule1F1B, Loss]] = {}


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Keep an equal number of blocks, with the embedding before the first and the head behind the last."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = len(model.blocks) // ranks
    parts = list(model.blocks[rank * each : (rank + 1) * each])
    if rank == 0:
        parts.insert(0, model.embedding)
    if rank == ranks - 1:
        parts += [model.norm, model.head]
    return nn.Sequential(*parts).to(device)


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """Run the schedule; the loss is told to all stages."""
    device = next(model.parameters()).device
    inputs, targets = share
    if inputs.shape not in _steps:
        _steps[inputs.shape] = _step(model, share, loss_fn)
    schedule, loss = _steps[inputs.shape]
    loss.counts = [int((part != -100).sum().item()) for _, part in split(share)]
    loss.done, loss.mean = 0, torch.zeros((), device=device)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule.step(
        *((inputs.to(device),) if rank == 0 else ()),
        target=targets.to(device) if rank == ranks - 1 else None,
        return_outputs=False,
    )
    dist.all_reduce(loss.mean)
    return loss.mean


def _step(model: nn.Module, share: Share, loss_fn: LossFunction) -> tuple[Schedule1F1B, Loss]:
    """Make the schedule once, with shapes known, so that no stage asks its neighbour for them."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = next(model.parameters()).device
    ids = share[0][:MICRO_BATCH].to("meta")
    passed = torch.empty(*ids.shape, WIDTH, device="meta", requires_grad=True)
    logits = torch.empty(*ids.shape, VOCABULARY, device="meta", requires_grad=True)
    stage = PipelineStage(
        model,
        rank,
        ranks,
        device,
        input_args=ids if rank == 0 else passed,
        output_args=logits if rank == ranks - 1 else passed,
    )
    loss = Loss(loss_fn, [], torch.zeros(()))
    return Schedule1F1B(stage, len(share[0]) // MICRO_BATCH, loss_fn=loss, scale_grads=False), loss
