"""What a rank holds of a tensor."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def share_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's share of a tensor that is divided, else the tensor itself.

    Without the gradient's way that ``to_local`` would open.
    """
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # noqa: SLF001  (whatever hooks)


def memory_of(tensor: torch.Tensor) -> int:
    """Return what tells the storage of this rank's share, which stays where FSDP2 frees and fills it."""
    address: int = share_of(tensor).untyped_storage()._cdata  # noqa: SLF001  (no public accessor)
    return address
