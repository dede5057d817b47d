"""Operators that take what masks choose, whose sizes hang on values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"})


def takes_masks(func: Any) -> bool:
    """Return whether an operator's second argument is a list of indices, of which some may be masks."""
    return func.overloadpacket.__name__ in _INDEXED


def is_mask(index: Any) -> bool:
    """Return whether an index chooses elements, rather than telling their places."""
    return isinstance(index, torch.Tensor) and index.dtype in {torch.bool, torch.uint8}


def chosen_by(
    indices: Iterable[Any], places_of: Callable[[torch.Tensor], Iterable[torch.Tensor] | None]
) -> list[Any] | None:
    """Return indices with the places of what each mask chooses in its stead, one for each of its axes.

    None where those of a mask are not known.
    """
    found: list[Any] = []
    for index in indices:
        places = places_of(index) if is_mask(index) else [index]
        if places is None:
            return None
        found += places
    return found
