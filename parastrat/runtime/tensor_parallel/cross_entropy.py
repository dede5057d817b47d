"""Cross entropy over a vocabulary that the tensor-parallel ranks divide (arXiv 1909.08053, section 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from parastrat.runtime.communication.flow import ranks_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def cross_entropies(
    own: torch.Tensor, target: torch.Tensor, ignored: int, mesh: DeviceMesh
) -> torch.Tensor:
    """Return each row's cross entropy; zero where the target is ``ignored``.

    Args:
        own: this rank's share of the logits' columns, of all rows.
        target: the column of each row, counted over the whole vocabulary.
        ignored: the target of rows that do not count.
        mesh: the ranks that have the other columns, in order.

    Raises:
        RuntimeError: on the host, for a target outside of the vocabulary; devices abort, as torch's own do.
    """
    size = own.shape[-1] * mesh.size()
    counts = target != ignored
    # private; nothing public tells of a wrong target without waiting for the device
    torch._assert_async(  # noqa: SLF001
        (~counts | ((target >= 0) & (target < size))).all(), f"a target is outside of the {size} classes"
    )
    losses: torch.Tensor = _CrossEntropies.apply(own, target, counts, mesh)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropies(torch.autograd.Function):
    """Two messages of a number or two a row forward, none backward."""

    @staticmethod
    def forward(
        ctx: Any, own: torch.Tensor, target: torch.Tensor, counts: torch.Tensor, mesh: DeviceMesh
    ) -> torch.Tensor:
        values = own.detach()
        values = values if values.dtype is torch.float64 else values.float()
        ranks = ranks_of(mesh)
        largest = values.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=ranks.group)
        column = target - own.shape[-1] * ranks.rank
        here = (column >= 0) & (column < own.shape[-1]) & counts
        column = column.masked_fill(~here, 0).unsqueeze(-1)
        shifted = values - largest.unsqueeze(-1)
        chosen = shifted.gather(-1, column).squeeze(-1).masked_fill(~here, 0.0)
        shares = shifted.exp_()
        both = torch.stack((shares.sum(-1), chosen))
        dist.all_reduce(both, group=ranks.group)
        shares.div_(both[0].unsqueeze(-1))
        ctx.save_for_backward(shares, column, here, counts)
        ctx.dtype = own.dtype
        return (both[0].log() - both[1]).masked_fill(~counts, 0.0).to(own.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        shares, column, here, counts = ctx.saved_tensors
        weights = gradients[0].to(shares.dtype).masked_fill(~counts, 0.0)
        gradient = shares * weights.unsqueeze(-1)
        gradient.scatter_add_(-1, column, (-weights).masked_fill(~here, 0.0).unsqueeze(-1))
        return gradient.to(ctx.dtype), None, None, None
