"""Tensors and numbers of several ranks compared by a few numbers of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist

from parastrat.runtime.shares import share_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Named: TypeAlias = "list[tuple[str, torch.Tensor | None]]"

#: of a tensor's norm, by which weighted sums of its values may differ: other makes of device round
#: otherwise, and whoever trains apart is further off within a step
DRIFT = 1e-4
#: weights of such a sum, in no order that layers have: gradients of classes and of channels add up to zero.
#: Powers of all numbers below a prime, with an exponent prime to it less one, are these numbers mixed up
_WEIGHTS = 61
_MIXING = 7
#: of bytes in the shortest format of fractions that torch adds up
_SHORTEST = 2


def is_compared(count: int) -> bool:
    """Return whether ranks are compared at this count: powers of two, which soon cost nothing."""
    return count.bit_count() == 1


def differing(
    tensors: Named, device: torch.device, group: dist.ProcessGroup | None, tolerance: float = DRIFT
) -> str:
    """Return the name of the first tensor of which the ranks of a group hold other values, or "".

    Args:
        tensors: by name, as many on all ranks; None counts as zeros.
        device: on which messages are sent.
        group: all its ranks call it.
        tolerance: of the greatest norm, by which weighted sums may differ.
    """
    if not tensors:
        return ""
    sums, norms = torch.stack([told(tensor, device) for _, tensor in tensors]).T
    message = torch.cat([sums, -sums, norms])
    dist.all_reduce(message, op=dist.ReduceOp.MAX, group=group)
    most, least, norm = message.chunk(3)
    apart = (most + least) > tolerance * norm
    return next((name for (name, _), each in zip(tensors, apart.tolist(), strict=True) if each), "")


def told(tensor: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Return a weighted sum and the norm of this rank's share of a tensor, in fp64; zeros of none."""
    own = None if tensor is None else share_of(tensor.detach())
    if own is not None and own.is_sparse:
        own = own.to_dense()
    if own is None or own.is_meta or not own.numel() or _is_too_short(own):
        return torch.zeros(2, dtype=torch.float64, device=device)
    flat = (torch.view_as_real(own) if own.is_complex() else own).reshape(-1)
    if not flat.is_floating_point():
        flat = flat.double()
    weights = (torch.arange(1, _WEIGHTS + 1, device=flat.device) ** _MIXING % _WEIGHTS).double() / _WEIGHTS
    whole = flat.numel() // _WEIGHTS * _WEIGHTS
    summed = flat[:whole].view(-1, _WEIGHTS).sum(0, dtype=torch.float64) @ weights
    rest = flat[whole:].double() @ weights[: flat.numel() - whole]
    norm = torch.linalg.vector_norm(flat, dtype=torch.float64)
    return torch.nan_to_num(torch.stack([summed + rest, norm])).to(device)


def _is_too_short(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < _SHORTEST


def spread(
    own: Sequence[float], device: torch.device, group: dist.ProcessGroup | None
) -> list[tuple[float, float]]:
    """Return the least and the greatest of the ranks' for each number; all of them call it."""
    given = torch.tensor(own, dtype=torch.float64, device=device)
    message = torch.cat([given, -given])
    dist.all_reduce(message, op=dist.ReduceOp.MAX, group=group)
    most, least = message.chunk(2)
    return list(zip((-least).tolist(), most.tolist(), strict=True))
