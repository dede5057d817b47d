"""What autograd's nodes tell of the operators that made them."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import Any

import torch
from torch.autograd.graph import Node

#: beyond the numbers that autograd gives to nodes in their order; leaves have the largest of all
LEAVES = 2**62
#: what autograd adds to dimensions that are counted from the last
_WRAPPED = 2**64

_PAD = "_saved_pad"
#: more kinds of nodes than a program has
_MOST_KINDS = 1024

#: not pointwise by torch's own tags, and yet without regard to what else a tensor has
_POINTWISE = frozenset(
    (
        *("tocopy", "copy", "alias", "asstrided", "torch::autograd::copyslices", "fill", "zero"),
        *("nativedropout", "hardswish", "logsigmoid", "rreluwithnoise", "complex", "polar"),
        # by which FSDP2 hears of the end of a unit's backward: it hands on what a block is given
        "registerpostbackwardfunctionbackward",
    )
)
#: of two tensors, or of the elements of one
_ALSO_REDUCE = frozenset(("max", "min"))
#: other shapes of the same values, in their order or in another
_SHAPES = frozenset(
    (
        *("view", "unsafeview", "reshapealias", "expand", "unsqueeze", "squeeze"),
        *("transpose", "permute", "t"),
    )
)
#: kernels of one thing, which sizes, formats and devices choose
PRODUCT, ATTENTION = "product", "attention"
_PRODUCTS = frozenset(
    f"{name}Backward0" for name in ("Mm", "Bmm", "Mv", "Dot", "Addmm", "Baddbmm", "Addbmm")
)
_FUSED_ATTENTION = "ScaledDotProduct"


@cache
def mixing_of(name: str) -> str | None:
    """Return the name of a node's operator where it may mix features, one for all kernels of a thing.

    None where it computes each element of its own; empty where it gives the same values another shape.
    """
    if name.startswith(_FUSED_ATTENTION):
        return ATTENTION
    if name in _PRODUCTS:
        return PRODUCT
    if _is_pointwise(name):
        return None
    return "" if _operator_of(name) in _SHAPES else name


def number_of(node: Node) -> int:
    """Return a node's place in the order in which a thread made them."""
    number: int = node._sequence_nr()  # noqa: SLF001
    return number


def dims_of(node: Node) -> tuple[int, ...] | None:
    """Return the dimensions that an operator works along, from the first or the last; None: not noted."""
    name = dims_name(type(node))
    dims: Any = None if name is None else getattr(node, name)
    if dims is None:
        return None
    if name == _PAD:  # two numbers for the last dimension, two for the one before, and so on
        return tuple(-1 - place // 2 for place, width in enumerate(dims) if width)
    several = dims if isinstance(dims, tuple) else (dims,)
    return tuple(dim - _WRAPPED if dim > LEAVES else dim for dim in several)


@lru_cache(_MOST_KINDS)
def dims_name(kind: type[Node]) -> str | None:
    """Return under which name nodes of a kind have the dimensions that they work along."""
    return next((name for name in (_PAD, "_saved_dim", "_saved_dims") if hasattr(kind, name)), None)


def _is_pointwise(name: str) -> bool:
    """Return whether a node's operator computes each element of its own."""
    operator = _operator_of(name)
    if operator in _POINTWISE:
        return True
    return operator not in _ALSO_REDUCE and any(
        torch.Tag.pointwise in getattr(packet, overload).tags
        for packet in (getattr(torch.ops.aten, each) for each in _operators().get(operator, ()))
        for overload in packet.overloads()
    )


def _operator_of(node: str) -> str:
    """Return ``log1p`` of ``Log1PBackward0``; functions of the user's own have no number."""
    return re.sub(r"Backward(\d+|s)$", "", node).lower()


@cache
def _operators() -> dict[str, set[str]]:
    """Return torch's operators by their names as nodes' names have them."""
    found: dict[str, set[str]] = {}
    for name in torch._C._dispatch_get_all_op_names():  # noqa: SLF001
        space, _, full = name.partition("::")
        if space == "aten":
            operator = full.partition(".")[0]
            found.setdefault(operator.replace("_", "").lower(), set()).add(operator)
    return found
