"""How a divided dimension passes through operators of several tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.fx import Node

from parastrat.runtime.tensor_parallel.calls import Call, described, is_one_along, shape_of, united
from parastrat.runtime.tensor_parallel.tags import NotFollowedError, Tag


def pointwise(call: Call) -> Tag:
    """All divided inputs agree; the others have one element along that dimension."""
    sides = len(shape_of(call.node))
    aligned = {node: tag.dim + sides - len(shape_of(node)) for node, tag in call.tags.items()}
    first, tag = next(iter(call.tags.items()))
    for node, other in call.tags.items():
        if aligned[node] != aligned[first] or (other.outer, other.shares) != (tag.outer, tag.shares):
            raise NotFollowedError("it meets a tensor that is divided differently")
    for node in call.operands:
        if node in call.tags or node in call.own:
            continue
        if not is_one_along(node, aligned[first] - sides + len(shape_of(node))):
            raise NotFollowedError(f"it meets {described(node)}, which is whole")
    return united(call, tag.moved(aligned[first]))


def joined(call: Call) -> Tag:
    """Cat and stack of tensors that are all divided alike."""
    given: Any = call.args[0]
    dim, sides = call.argument(1, 0), len(shape_of(call.node))
    tag = next(iter(call.tags.values()))
    for other in given:
        if call.name == "cat" and shape_of(other) == (0,):
            continue  # torch passes over it, whatever sides the others have: a cache that is empty yet
        alike = other in call.tags and replace(call.tags[other], sources=tag.sources) == tag
        if not alike and (other in call.tags or not is_one_along(other, tag.dim)):
            raise NotFollowedError("it is joined with a whole tensor")
    if call.name == "stack":
        return united(call, tag.moved(tag.dim + (dim % sides <= tag.dim)))
    if dim % sides == tag.dim:
        raise NotFollowedError("it is joined with others along its features")
    return united(call, tag)


def attention(call: Call) -> Tag:
    """Queries, keys, values and mask are divided along the same heads."""
    tensors = [call.args[index] for index in range(3)]
    tag = call.tags.get(tensors[0])
    sides = len(shape_of(call.node))
    for tensor in tensors:
        other = call.tags.get(tensor)
        if tag is None or other is None or (other.dim, other.outer) != (tag.dim, tag.outer):
            raise NotFollowedError("attention gets queries, keys and values that are divided differently")
    if tag is None or tag.dim >= sides - 2:
        raise NotFollowedError("attention is over what is divided")
    mask = call.argument(3, call.node.kwargs.get("attn_mask"))
    if isinstance(mask, Node):
        shape = shape_of(mask)
        dim = tag.dim - sides + len(shape)
        if mask not in call.tags and dim >= 0 and shape[dim] != 1:
            raise NotFollowedError(f"attention's mask ({described(mask)}) is whole")
    return united(call, tag)


def matmul(call: Call) -> Tag:
    """A product of two activations keeps what it does not multiply away."""
    left, right = call.args[-2:] if call.name == "baddbmm" else call.args[:2]
    sides = len(shape_of(call.node))
    found: set[int] = set()
    tag = next(iter(call.tags.values()))
    for node, contracted in ((left, -1), (right, -2)):
        if node not in call.tags:
            continue
        own, shape = call.tags[node], shape_of(node)
        if own.dim == len(shape) + contracted:
            raise NotFollowedError("its features are multiplied away outside of a linear layer")
        found.add(own.dim + sides - len(shape))
        if (own.outer, own.shares) != (tag.outer, tag.shares):
            raise NotFollowedError("it is multiplied with what is divided differently")
    if len(found) > 1:
        raise NotFollowedError("it is multiplied with what is divided along another dimension")
    (dim,) = found
    for node in call.operands:
        shape = shape_of(node)
        own_dim = dim - sides + len(shape)
        batch = dim < sides - 2 or node not in (left, right)
        if node not in call.tags and batch and own_dim >= 0 and shape[own_dim] != 1:
            raise NotFollowedError(f"it is multiplied with {described(node)}, which is whole")
    return united(call, replace(tag, dim=dim))
