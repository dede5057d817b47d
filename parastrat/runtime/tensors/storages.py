"""Which storage a tensor is in, also where that has no address: views share it."""

from __future__ import annotations

import torch


def storage_of(tensor: torch.Tensor) -> int:
    """Return what all views of a tensor share while it lives; meta and fake tensors have no address."""
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001  (no public identity)
