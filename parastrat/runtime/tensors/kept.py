"""What the modules of a model keep of a forward for others: a loss may read it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


def kept_in(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors with a gradient among the attributes of modules, by where they are.

    What has none is left out: caches, and what is shown alone; each rank may have its share of it. DTensors
    are too: what a loss computes beside them is plain.
    """
    return {
        f"{path}.{name}[{index}]": leaf
        for path, name, value in keeping(model)
        for index, leaf in enumerate(tensors_in(value))
        if leaf.grad_fn is not None and not isinstance(leaf, DTensor)
    }


def keeping(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """Yield attributes and buffers that may hold tensors: the module's path, the name, the value."""
    for path, part in model.named_modules():
        for name, value in {**vars(part), **dict(part.named_buffers(recurse=False))}.items():
            if name not in _TORCH and isinstance(value, torch.Tensor | list | tuple | Mapping):
                yield path, name, value


#: where torch's own modules hold parameters, modules and hooks
_TORCH = frozenset(vars(torch.nn.Module()))
