"""Weights of several layers in one, as fused q, k and v, of which each rank computes with its share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from parastrat.runtime.communication.flow import gather_parts, ranks_of
from parastrat.runtime.tensor_parallel.own_values import own_values

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


def own_stretches(
    parameter: DTensor, segments: tuple[int, ...], dim: int, mesh: DeviceMesh
) -> torch.Tensor:
    """Return this rank's share of each segment; the parameter itself is divided as a whole, as stored."""
    ranks = ranks_of(mesh)
    rank, size = ranks.rank, ranks.size
    whole = gather_parts(own_values(parameter), mesh, dim)
    starts = [sum(segments[:index]) for index in range(len(segments))]
    stretches = [
        (start + rank * (length // size), length // size)
        for start, length in zip(starts, segments, strict=True)
    ]
    own: torch.Tensor = _Stretches.apply(whole, dim, stretches)  # type: ignore[no-untyped-call]
    return own


def own_head(whole: torch.Tensor, heads: int, mesh: DeviceMesh) -> torch.Tensor:
    """Return the rows of the one head that this rank computes, of fewer heads than ranks."""
    ranks = ranks_of(mesh)
    own: torch.Tensor = whole.chunk(heads)[ranks.rank * heads // ranks.size]
    return own


class _Stretches(torch.autograd.Function):
    """Stretches of a tensor, joined; their gradient is one tensor, where slices would have one each."""

    @staticmethod
    def forward(ctx: Any, whole: torch.Tensor, dim: int, stretches: list[tuple[int, int]]) -> torch.Tensor:
        ctx.shape, ctx.dim, ctx.stretches = whole.shape, dim, stretches
        return torch.cat([whole.narrow(dim, *stretch) for stretch in stretches], dim)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (own,) = gradients
        whole, begin = own.new_zeros(ctx.shape), 0
        for start, length in ctx.stretches:
            whole.narrow(ctx.dim, start, length).copy_(own.narrow(ctx.dim, begin, length))
            begin += length
        return whole, None, None
