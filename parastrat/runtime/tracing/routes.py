"""Which experts tokens choose, where nothing has values: all equally often, as routers are trained to."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

_ATEN = torch.ops.aten


def evenly_chosen(
    func: Any, args: tuple[Any, ...], result: Any
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the places that an operator chooses as the largest, and values that take turns; or None."""
    several = func is _ATEN.topk.default
    if several:
        places, dim = result[1], args[2] if len(args) > 2 else -1
    elif func is _ATEN.argmax.default and len(args) > 1 and args[1] is not None:
        places, dim = result, args[1]
    else:
        return None
    if not (isinstance(places, FakeTensor) and args[0].is_floating_point()):
        return None
    with unset_fake_temporarily():
        turns = torch.arange(places.numel()) % args[0].shape[dim]
        if not several:
            return places, turns.reshape(tuple(places.shape))
        # a token's choices differ from each other
        return places, turns.reshape(tuple(places.transpose(dim, -1).shape)).transpose(dim, -1)
