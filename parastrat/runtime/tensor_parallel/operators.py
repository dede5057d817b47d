"""How a divided dimension passes through each operator of an exported graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from parastrat.runtime.tensor_parallel.tags import NotFollowedError, Tag, divided_pieces, viewed


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
    """Return the shape of a node's value, or of the first of several."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        value = value[0]
    return tuple(int(side) for side in value.shape) if isinstance(value, torch.Tensor) else ()


def followed(call: Call) -> Tag:
    """Return the tag of a call's output, or of each of its outputs.

    Raises:
        NotFollowedError: naming what cannot be divided.
        SegmentsNeededError: if a fused output is taken apart.
    """
    rule = _RULES.get(call.name)
    if rule is not None:
        return rule(call)
    if torch.Tag.pointwise in getattr(call.node.target, "tags", ()) or call.name in _SAME:
        return _pointwise(call)
    raise NotFollowedError(f"its output goes through {call.name}")


def _pointwise(call: Call) -> Tag:
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
        shape = shape_of(node)
        dim = aligned[first] - sides + len(shape)
        if dim >= 0 and shape[dim] != 1:
            raise NotFollowedError(f"it meets {_described(node)}, which is whole")
    return _union(call, tag.moved(aligned[first]))


def _described(node: Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    place = stack[-1][0] if stack else ""
    return f"the result of {_short(node)}" + (f" in {place}" if place else "")


def _short(node: Node) -> str:
    return str(getattr(node.target, "overloadpacket", node.name)).removeprefix("aten.")


def _union(call: Call, tag: Tag) -> Tag:
    return replace(tag, sources=frozenset().union(*(other.sources for other in call.tags.values())))


def _view(call: Call) -> Tag:
    return viewed(call.tag, shape_of(call.args[0]), shape_of(call.node), call.degree)


def _permute(call: Call) -> Tag:
    sides = len(shape_of(call.node))
    if call.name in {"t", "numpy_T"}:
        order = list(reversed(range(sides)))
    elif call.name in {"transpose", "swapaxes"}:
        order = list(range(sides))
        a, b = call.args[1] % sides, call.args[2] % sides
        order[a], order[b] = order[b], order[a]
    else:
        order = [side % sides for side in call.args[1]]
    return call.tag.moved(order.index(call.tag.dim))


def _unsqueeze(call: Call) -> Tag:
    dim = call.args[1] % len(shape_of(call.node))
    return call.tag.moved(call.tag.dim + (dim <= call.tag.dim))


def _squeeze(call: Call) -> Tag:
    shape = shape_of(call.args[0])
    given = call.argument(1)
    dims = range(len(shape)) if given is None else [given] if isinstance(given, int) else given
    gone = [dim % len(shape) for dim in dims if shape[dim] == 1]
    return call.tag.moved(call.tag.dim - sum(dim < call.tag.dim for dim in gone))


def _aligned_right(call: Call) -> Tag:
    """Expand: dimensions may be added on the left."""
    before = shape_of(call.args[0])
    dim = call.tag.dim + len(shape_of(call.node)) - len(before)
    if shape_of(call.node)[dim] != before[call.tag.dim]:
        raise NotFollowedError("it is repeated along its features")
    return call.tag.moved(dim)


def _repeat_interleave(call: Call) -> Tag:
    if call.argument(2) is None:
        raise NotFollowedError("its elements are repeated")
    return call.tag


def _along(call: Call, dim: int, sizes: Callable[[int], Sequence[int]]) -> Tag:
    """Pieces along a dimension: whole in the divided one, unless that is the one which is split."""
    shape = shape_of(call.args[0])
    if dim % len(shape) != call.tag.dim:
        return call.tag
    return divided_pieces(call.tag, sizes(shape[call.tag.dim]))


def _split(call: Call) -> Tag:
    given: Any = call.args[1]

    def sizes(total: int) -> Sequence[int]:
        if not isinstance(given, int):
            pieces: Sequence[int] = given
            return pieces
        piece = -(-total // given) if call.name == "chunk" else given
        return [min(piece, total - start) for start in range(0, total, piece)]

    return _along(call, call.argument(2, call.node.kwargs.get("dim", 0)), sizes)


def _slice(call: Call) -> Tag:
    shape = shape_of(call.args[0])
    dim = call.argument(1, 0) % len(shape)
    if shape_of(call.node)[dim] == shape[dim]:
        return call.tag
    return _along(call, dim, lambda total: _cuts(call.args[0], dim, total))


def _cuts(node: Any, dim: int, total: int) -> list[int]:
    """Return the sizes of the pieces into which all slices of a tensor cut it."""
    ends = {0, total}
    for user in node.users:
        if (
            _short(user) == "slice"
            and (user.args[1] if len(user.args) > 1 else 0) % len(shape_of(node)) == dim
        ):
            ends |= {_end(user, 2, 0, total), _end(user, 3, total, total)}
    ordered = sorted(ends)
    return [end - start for start, end in pairwise(ordered)]


def _end(node: Any, index: int, default: int, total: int) -> int:
    given: Any = node.args[index] if len(node.args) > index else None
    value = default if given is None else int(given)
    return max(0, min(total, value + total if value < 0 else value))


def _pick(call: Call) -> Tag:
    """Select and unbind take a dimension away."""
    shape = shape_of(call.args[0])
    dim = call.argument(1, 0) % len(shape)
    if dim == call.tag.dim:
        divided_pieces(call.tag, [1] * shape[dim])
        raise NotFollowedError("single features are picked out of it")
    return call.tag.moved(call.tag.dim - (dim < call.tag.dim))


def _reduced(call: Call) -> Tag:
    shape = shape_of(call.args[0])
    given = call.argument(1)
    dims = [given] if isinstance(given, int) else given
    if not dims or call.tag.dim in {dim % len(shape) for dim in dims}:
        raise NotFollowedError(f"its features are reduced by {call.name}")
    kept = len(shape_of(call.node)) == len(shape)
    gone = 0 if kept else sum(dim % len(shape) < call.tag.dim for dim in dims)
    return call.tag.moved(call.tag.dim - gone)


def _scan(call: Call) -> Tag:
    if call.args[1] % len(shape_of(call.node)) == call.tag.dim:
        raise NotFollowedError(f"its features are compared by {call.name}")
    return call.tag


def _norm(call: Call) -> Tag:
    if call.tag.dim >= len(shape_of(call.node)) - len(call.args[1]):
        raise NotFollowedError("its features are normalised together")
    return call.tag


def _joined(call: Call) -> Tag:
    """Cat and stack of tensors that are all divided alike."""
    given: Any = call.args[0]
    dim, sides = call.argument(1, 0), len(shape_of(call.node))
    tag = call.tags.get(given[0])
    if tag is None or any(
        other not in call.tags or replace(call.tags[other], sources=tag.sources) != tag for other in given
    ):
        raise NotFollowedError("it is joined with a whole tensor")
    if call.name == "stack":
        return _union(call, tag.moved(tag.dim + (dim % sides <= tag.dim)))
    if dim % sides == tag.dim:
        raise NotFollowedError("it is joined with others along its features")
    return _union(call, tag)


def _attention(call: Call) -> Tag:
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
            raise NotFollowedError(f"attention's mask ({_described(mask)}) is whole")
    return _union(call, tag)


def _matmul(call: Call) -> Tag:
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
            raise NotFollowedError(f"it is multiplied with {_described(node)}, which is whole")
    return _union(call, replace(tag, dim=dim))


_SAME = frozenset(
    {"to", "contiguous", "clone", "alias", "detach", "type_as", "dropout", "_to_copy", "lift_fresh_copy"}
    | {"gelu", "silu", "relu", "softplus", "masked_fill", "where", "float", "nan_to_num", "expand_as"}
    | {"dropout_", "native_dropout", "feature_dropout", "leaky_relu", "elu", "hardswish", "mish"}
)
_RULES: dict[str, Callable[[Call], Tag]] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten", "_unsafe_view", "view_as"), _view),
    **dict.fromkeys(("permute", "transpose", "swapaxes", "t", "numpy_T"), _permute),
    "unsqueeze": _unsqueeze,
    "squeeze": _squeeze,
    "expand": _aligned_right,
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    "slice": _slice,
    **dict.fromkeys(("select", "unbind"), _pick),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "norm", "logsumexp"), _reduced),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "_softmax"), _scan),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("cat", "stack"), _joined),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("matmul", "bmm", "baddbmm"), _matmul),
}
