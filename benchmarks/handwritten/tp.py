"""Tensor parallelism by hand, on each rank's own tensors: Megatron's layers, the sequence divided between.

Layers and their collectives as in arXiv 1909.08053 and 2205.05198. The logits are gathered (no loss
parallelism), as the plan says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

from handwritten.step import accumulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from handwritten.step import LossFunction, Share

    Change = Callable[[torch.Tensor, dist.ProcessGroup], torch.Tensor]

#: torch 2.13 renamed them, and warns at each call of the earlier names
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gathered(share: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the positions of all ranks, from (samples, positions of one, width)."""
    ranks = dist.get_world_size(group)
    every = share.new_empty(ranks, *share.shape)
    all_gather(every.flatten(0, 1), share.contiguous(), group=group)
    return every.transpose(0, 1).reshape(len(share), -1, share.shape[-1])


def scattered(whole: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Return this rank's positions of the sum over ranks."""
    ranks = dist.get_world_size(group)
    shares = whole.view(len(whole), ranks, -1, whole.shape[-1]).transpose(0, 1).contiguous()
    own = torch.empty_like(shares[0])
    reduce_scatter(own, shares.flatten(0, 1), group=group)
    return own


class Exchange(torch.autograd.Function):
    """One change of positions on the way, its conjugate for the gradient."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, there: Change, back: Change, group: dist.ProcessGroup
    ) -> torch.Tensor:
        ctx.back = back, group
        return there(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        back, group = ctx.back
        return back(gradient, group), None, None, None


class GatherLogits(torch.autograd.Function):
    """The logits of all ranks, which compute the same loss of them: each has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.own = group.rank(), group.size()
        every = share.new_empty(group.size(), *share.shape)
        all_gather(every.flatten(0, 1), share.contiguous(), group=group)
        return every.movedim(0, -2).flatten(-2)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        rank, ranks = ctx.own
        return gradient.chunk(ranks, dim=-1)[rank], None


class Vocabulary(nn.Module):
    """This rank's part of an embedding; what it returns is to be added up over ranks."""

    def __init__(self, whole: nn.Embedding, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.weight = nn.Parameter(_own(whole.weight, group, dim=0))
        self.first = group.rank() * len(self.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        own = tokens - self.first
        others = (own < 0) | (own >= len(self.weight))
        return functional.embedding(own.masked_fill(others, 0), self.weight).masked_fill(
            others[..., None], 0
        )


def _own(weight: torch.Tensor, group: dist.ProcessGroup, *, dim: int) -> torch.Tensor:
    return weight.detach().chunk(group.size(), dim)[group.rank()].clone()


def divide(model: nn.Module, group: dist.ProcessGroup) -> list[nn.Parameter]:
    """Divide heads, features, vocabulary and, between them, positions; return what each rank has whole.

    Each rank's gradients of those are of its own positions alone.
    """

    def gather(_module: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return Exchange.apply(given[0], gathered, scattered, group)

    def scatter(_module: nn.Module, _given: Any, output: torch.Tensor) -> torch.Tensor:
        return Exchange.apply(output, scattered, gathered, group)

    model.embedding = Vocabulary(model.embedding, group)
    model.embedding.register_forward_hook(scatter)
    for block in model.blocks:
        for part, columns, row in (
            (block.attention, ("q", "k", "v"), block.attention.out),
            (block.feed, ("gate", "up"), block.feed.down),
        ):
            part.register_forward_pre_hook(gather)  # once for the layers that read it
            row.register_forward_hook(scatter)
            row.weight = nn.Parameter(_own(row.weight, group, dim=1))
            for column in columns:
                layer = part.get_submodule(column)
                layer.weight = nn.Parameter(_own(layer.weight, group, dim=0))
    model.head.weight = nn.Parameter(_own(model.head.weight, group, dim=0))
    model.head.register_forward_pre_hook(gather)
    model.head.register_forward_hook(lambda _module, _given, share: GatherLogits.apply(share, group))
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_norm)]
    return [norm.weight for norm in (*norms, model.norm)]


_whole: list[nn.Parameter] = []


def parallelize(model: nn.Module, device: torch.device) -> nn.Module:
    """Divide over all ranks."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    _whole[:] = divide(model.to(device), mesh.get_group())
    return model


def forward_backward(model: nn.Module, share: Share, loss_fn: LossFunction) -> torch.Tensor:
    """All ranks see the same samples; the norms saw a share of the positions each."""
    mean = accumulate(model, share, loss_fn)
    add_up([weight.grad for weight in _whole], dist.group.WORLD)
    return mean


def add_up(gradients: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Add up gradients over ranks in place, in one message a step."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
