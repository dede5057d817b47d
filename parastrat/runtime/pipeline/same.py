"""Batches of the ranks of one pipeline: the same, as all stages compute what lies between blocks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten

from parastrat.errors import MismatchError
from parastrat.runtime.tensors.leaves import tree_tensors


def check_same_batches(batches: list[Any], group: dist.ProcessGroup) -> None:
    """Refuse different batches on the ranks of one pipeline.

    Raises:
        MismatchError: if they differ in shapes or contents.
    """
    own = [
        (signature(batch), [float(leaf.double().sum()) for leaf in tree_tensors(batch)])
        for batch in batches
    ]
    every: list[Any] = [own] * dist.get_world_size(group)
    dist.all_gather_object(every, own, group=group)
    if any(str(other) != str(own) for other in every):
        raise MismatchError(
            "the stages of one pipeline were given different batches",
            hint="give all ranks of a pipeline the same batch, as parastrat.shard_dataloader does",
        )


def signature(batch: Any) -> Any:
    """Return what the way of a forward hangs on: shapes, formats, and plain values."""
    leaves, spec = tree_flatten(batch)
    known = tuple(
        (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in leaves
    )
    return str(spec), known
