"""Many tensors exchanged in few messages."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from parastrat.runtime.tensors.shares import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

#: of one message, as the default of ``DistributedDataParallel``
MESSAGE_BYTES = 25 * 2**20


def in_messages(tensors: Iterable[torch.Tensor], exchange: Callable[[torch.Tensor], object]) -> None:
    """Let a collective change tensors in place, packed by format; all its ranks hold the same shapes.

    Args:
        tensors: plain ones, of one device.
        exchange: changes a flat tensor in place, such as an all-reduce.
    """
    formats: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
    for tensor in tensors:
        formats[tensor.dtype].append(tensor)
    for alike in formats.values():
        for packed in _packed(alike):
            message = torch.cat([tensor.detach().reshape(-1) for tensor in packed])
            exchange(message)
            parts = torch.split(message, [tensor.numel() for tensor in packed])
            with torch.no_grad():
                for tensor, part in zip(packed, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))


def average_gradients(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Average gradients over a group's ranks; what none of them has a gradient for stays without one."""
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    if not trained:
        return
    gradients = []
    own = [parameter.grad is not None for parameter in trained]
    for parameter, some in zip(trained, true_on_any(own, trained[0].device, group), strict=True):
        if some:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(share_of(parameter.grad))
    in_messages(gradients, lambda message: dist.all_reduce(message, dist.ReduceOp.AVG, group))


def true_on_any(own: list[bool], device: torch.device, group: dist.ProcessGroup | None) -> list[bool]:
    """Return for each place whether it is true on any rank of a group; all of them call it.

    Where all is true here, nothing is waited for.
    """
    found = torch.tensor(own, dtype=torch.uint8, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return own if all(own) else found.bool().tolist()


def one_each(own: int, device: torch.device, group: dist.ProcessGroup | None) -> list[int]:
    """Return the number that each rank of a group gives, in their order; all of them call it."""
    given = torch.tensor([own], device=device)
    every = [torch.empty_like(given) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, given, group=group)
    return [int(number) for number in torch.cat(every).tolist()]


def _packed(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield what makes a message of about the right size."""
    packed: list[torch.Tensor] = []
    held = 0
    for tensor in tensors:
        packed.append(tensor)
        held += tensor.nbytes
        if held >= MESSAGE_BYTES:
            yield packed
            packed, held = [], 0
    if packed:
        yield packed
