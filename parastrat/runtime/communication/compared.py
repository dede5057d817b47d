"""Tensors and numbers of several ranks compared by a few numbers of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from parastrat.runtime.tensors.shares import share_of

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
#: numbers that are taken to fp64 at once, 32 MiB of them: a copy of a large weight might not fit
_PIECE = _WEIGHTS << 16
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
    """Return a weighted sum and the norm of this rank's share of a tensor, in fp64.

    Zeros of none, of what torch does not add up (short formats, nested and quantised tensors).
    """
    own = None if tensor is None else share_of(tensor.detach())
    if own is None or own.is_meta or not own.numel() or _is_opaque(own):
        return torch.zeros(2, dtype=torch.float64, device=device)
    if own.layout is not torch.strided:
        own = own.to_dense()
    flat = (torch.view_as_real(own) if own.is_complex() else own).reshape(-1)
    weights = (torch.arange(1, _WEIGHTS + 1, device=flat.device) ** _MIXING % _WEIGHTS).double() / _WEIGHTS
    found = torch.zeros(2, dtype=torch.float64, device=flat.device)
    for piece in torch.split(flat, _PIECE):
        numbers = piece.double()
        whole = numbers.numel() // _WEIGHTS * _WEIGHTS
        found[0] += (numbers[:whole].view(-1, _WEIGHTS) @ weights).sum()
        found[0] += numbers[whole:] @ weights[: numbers.numel() - whole]
        found[1] += numbers @ numbers
    found[1].sqrt_()
    return torch.nan_to_num(found).to(device)


def _is_opaque(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, AsyncCollectiveTensor):  # on its way, and as others when it is there
        return False
    is_short = tensor.is_floating_point() and tensor.element_size() < _SHORTEST
    return is_short or tensor.is_nested or tensor.is_quantized or is_traceable_wrapper_subclass(tensor)


def spread(
    own: Sequence[float], device: torch.device, group: dist.ProcessGroup | None
) -> list[tuple[float, float]]:
    """Return the least and the greatest of the ranks' for each number; all of them call it."""
    given = torch.tensor(own, dtype=torch.float64, device=device)
    message = torch.cat([given, -given])
    dist.all_reduce(message, op=dist.ReduceOp.MAX, group=group)
    most, least = message.chunk(2)
    return list(zip((-least).tolist(), most.tolist(), strict=True))
