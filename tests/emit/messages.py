"""What a step sends, whatever torch calls it."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

#: what messages are called, by any of torch's names for them
KINDS = re.compile(r"all_?reduce|_?all_?gather|_?reduce_scatter|broadcast|send|recv")


class Messages(TorchDispatchMode):
    """Notes the kind of each message of a step with its bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it comes again as what it is made of
        result = func(*args, **(kwargs or {}))
        kind = KINDS.match(str(func).split(".")[1])
        if "c10d" in func.namespace and kind is not None:
            self.seen.append((kind[0].replace("_", ""), max(map(_bytes, [*args, result]))))
        return result


def _bytes(values: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
