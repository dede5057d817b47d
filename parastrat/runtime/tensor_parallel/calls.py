"""One operator of an exported graph, with what of its inputs is divided."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from parastrat.runtime.tensor_parallel.tags import NotFollowedError, Tag


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator with at least one divided input."""

    node: Node
    tags: dict[Node, Tag]
    degree: int
    #: parameters of the layers whose output it is: they are divided too
    own: frozenset[Node] = frozenset()

    @property
    def name(self) -> str:
        return str(getattr(self.node.target, "overloadpacket", self.node.target)).removeprefix("aten.")

    @property
    def args(self) -> Any:
        return self.node.args

    @property
    def operands(self) -> list[Node]:
        return [
            node for node in self.node.all_input_nodes if isinstance(node.meta.get("val"), torch.Tensor)
        ]

    def argument(self, index: int, default: Any = None) -> Any:
        return self.node.args[index] if len(self.node.args) > index else default

    @property
    def tag(self) -> Tag:
        """The first input's tag.

        Raises:
            NotFollowedError: if it has none, but another has.
        """
        first = self.args[0]
        if not isinstance(first, Node) or first not in self.tags:
            raise NotFollowedError(f"its output goes through {self.name} beside a whole tensor")
        return self.tags[first]


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's value, or of the first of several.

    Raises:
        NotFollowedError: where a size hangs on the data, as that of what a mask chooses.
    """
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        value = value[0]
    if not isinstance(value, torch.Tensor):
        return ()
    if not all(isinstance(side, int) for side in value.shape):
        raise NotFollowedError(f"the size of {described(node)} hangs on the data")
    return tuple(value.shape)


def described(node: Node) -> str:
    """Name a node's operator and the module that calls it."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    place = stack[-1][0] if stack else ""
    return f"the result of {short_name(node)}" + (f" in {place}" if place else "")


def short_name(node: Node) -> str:
    """Return an operator's name without its overload."""
    return str(getattr(node.target, "overloadpacket", node.name)).removeprefix("aten.")


def is_one_along(node: Any, dim: int) -> bool:
    """Return whether a whole tensor has one element along a dimension, or is expanded from one."""
    shape = shape_of(node)
    if dim < 0 or shape[dim] == 1:
        return True
    if short_name(node) not in {"expand", "broadcast_to"}:
        return False
    before = shape_of(node.args[0])
    own = dim - len(shape) + len(before)
    return own < 0 or before[own] == 1


def united(call: Call, tag: Tag) -> Tag:
    """Return the tag with the sources of all divided inputs."""
    return replace(tag, sources=frozenset().union(*(other.sources for other in call.tags.values())))
