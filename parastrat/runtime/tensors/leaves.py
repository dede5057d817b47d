"""The tensors in what a forward takes or returned, whatever holds them.

torch's own trees know lists, tuples, dicts and what is registered with them. People also return
dataclasses, dicts and lists of their own classes, and objects with tensors for attributes: what is not
found there would be left out of a comparison, a loss or a pipeline's messages without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES, keystr, tree_leaves, tree_leaves_with_path, tree_map


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Return the tensors in a module's output, in order.

    Args:
        output: a tree of torch's, with dataclasses, mappings, lists and tuples of any class in it; or one
            object whose attributes are such. Objects inside of the tree, such as caches, are left alone.
    """
    return [leaf for leaf in _leaves(output, frozenset(), whole=True) if isinstance(leaf, torch.Tensor)]


def tree_tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors that torch's own trees tell of, as what functions and operators are given."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def leaves_with_paths(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a tree of torch's with where they are; numbered if a class does not tell."""
    try:
        return [(keystr(path), leaf) for path, leaf in tree_leaves_with_path(tree)]
    except ValueError:  # as diffusers' outputs, which torch.export does not ask for it either
        return [(f"[{place}]", leaf) for place, leaf in enumerate(tree_leaves(tree))]


def as_tree(batch: Any) -> Any:
    """Return a batch as torch's trees know it: mappings of other classes, as of tokenizers, as dicts."""
    return dict(batch) if isinstance(batch, Mapping) and type(batch) not in SUPPORTED_NODES else batch


def in_format(batch: Any, dtype: torch.dtype) -> Any:
    """Return a tree of torch's with its floating-point tensors in a format, as FSDP2 casts batches."""

    def brought(leaf: Any) -> Any:
        floats = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floats else leaf

    return tree_map(brought, batch)


def hides_tensors(output: Any) -> bool:
    """Return whether an output is an object of which torch's trees do not tell what is in it."""
    is_plain = output is None or isinstance(output, torch.Tensor | int | float | str | list | tuple)
    return not is_plain and type(output) not in SUPPORTED_NODES


def _leaves(value: Any, around: frozenset[int], *, whole: bool = False) -> Iterator[Any]:
    """Yield what is in a value; ``around`` are the identities of what holds it."""
    if id(value) in around:
        return
    inside = around | {id(value)}
    for leaf in tree_leaves(value):
        if leaf is not value:
            yield from _leaves(leaf, inside)
            continue
        for part in _parts(leaf, whole=whole):
            yield from _leaves(part, inside)
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _parts(leaf: Any, *, whole: bool) -> list[Any]:
    """Return what is in a leaf of torch's trees."""
    if isinstance(leaf, torch.Tensor | type):
        return []
    if is_dataclass(leaf):
        # not getattr: configs of transformers refuse to tell sizes that differ between layers
        return [object.__getattribute__(leaf, field.name) for field in fields(leaf)]
    if isinstance(leaf, Mapping):
        return list(leaf.values())
    if isinstance(leaf, list | tuple):
        return list(leaf)
    return list(getattr(leaf, "__dict__", {}).values()) if whole else []
