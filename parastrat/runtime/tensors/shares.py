"""What a rank holds of a tensor."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from parastrat.runtime.tensors.storages import storage_of


def share_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of a tensor that is divided, else the tensor itself.

    Without the gradient's way that ``to_local`` would open.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001  (whatever hooks)


def memory_of(tensor: torch.Tensor) -> int:
    """Return what tells the storage of this rank's share, which stays where FSDP2 frees and fills it."""
    return storage_of(share_of(tensor))


def share_of_whole(whole: torch.Tensor, divided: DTensor) -> torch.Tensor:
    """Return what this rank would hold of whole values that were divided as a tensor is; a view of them."""
    mesh, local = divided.device_mesh, whole
    # the innermost axis divides first, as tensor parallelism came before FSDP2
    for axis, placement in reversed(list(enumerate(divided.placements))):
        dim = getattr(placement, "dim", None)
        if dim is not None:
            local = _chunk(local, mesh.size(axis), mesh.get_local_rank(axis), dim)
    return local


def as_share(own: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return this rank's values as the share of a tensor that is divided as another; else as they are."""
    if not isinstance(like, DTensor):
        return own
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _chunk(tensor: torch.Tensor, parts: int, index: int, dim: int) -> torch.Tensor:
    """Return one of ``torch.chunk``'s parts, which may be fewer than asked for: then an empty one."""
    chunks = tensor.chunk(parts, dim)
    return chunks[index] if index < len(chunks) else tensor.narrow(dim, 0, 0)
