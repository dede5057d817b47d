"""What of a forward hangs on values: operators that read them, and flags that calls are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from parastrat.runtime.tensors.leaves import leaves_with_paths
from parastrat.runtime.tracing.masks import is_mask

if TYPE_CHECKING:
    from parastrat.runtime.tensor_parallel.layout import Given


def reads_values(operator: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operator gives Python numbers of tensors, or sizes that hang on their values.

    Args:
        operator: an overload of torch's, or anything else.
        args: tensors, or a graph's nodes with the ``val`` that torch.export notes.
    """
    tags = getattr(operator, "tags", ())
    if torch.Tag.data_dependent_output in tags or operator is torch.ops.aten.item.default:
        return True
    if torch.Tag.dynamic_output_shape not in tags:
        return False
    # of lookups, what a mask takes has a size that hangs on its values
    return operator is not torch.ops.aten.index.Tensor or any(map(_is_mask, args[1]))


def _is_mask(index: Any) -> bool:
    return is_mask(index.meta["val"] if isinstance(index, Node) else index)


def flags_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given | None:
    """Return the flags that a call is given, or returns; none where there is more than these and tensors.

    Numbers are more: they may be sizes, which others may have. Optional tensors may be left out: batches
    have a mask, or none, whatever a forward chooses.
    """
    leaves = leaves_with_paths((args, kwargs))
    flags = [(path, leaf) for path, leaf in leaves if not (leaf is None or isinstance(leaf, torch.Tensor))]
    if not all(isinstance(leaf, bool | str) for _, leaf in flags):
        return None
    return tuple(sorted((path, repr(leaf)) for path, leaf in flags))
