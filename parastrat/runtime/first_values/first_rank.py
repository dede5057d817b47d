"""What all ranks get of rank 0: weights of a module that was built on each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import nn

    from parastrat.runtime.wrapping import Wrapping


def to_device_from_first_rank(tensors: Iterable[torch.Tensor], wrapping: Wrapping) -> None:
    """Move what is not sharded yet to the device, and overwrite it with rank 0's values."""
    plain = [tensor for tensor in tensors if not isinstance(tensor, DTensor) and not tensor.is_meta]
    for tensor in plain:
        tensor.data = tensor.data.to(wrapping.device)
        # an own copy in standard layout: other layouts are sent in whatever order they are stored
        values = tensor.data.contiguous()
        wrapping.mesh.from_first(values)
        if values is not tensor.data:
            tensor.data.copy_(values)


def hold_alike(module: nn.Module, wrapping: Wrapping) -> nn.Module:
    """Give all ranks rank 0's weights of a module that is not trained: DDP takes none without gradients."""
    to_device_from_first_rank([*module.parameters(), *module.buffers()], wrapping)
    wrapping.calls.append("# nothing of it is trained: all ranks have rank 0's weights, and reduce nothing")
    return module
