"""How a divided dimension passes through each operator of an exported graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Node

from parastrat.runtime.tensor_parallel.calls import Call, shape_of, short_name
from parastrat.runtime.tensor_parallel.products import attention, joined, matmul, pointwise
from parastrat.runtime.tensor_parallel.tags import NotFollowedError, Tag, divided_pieces, viewed


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
        return pointwise(call)
    raise NotFollowedError(f"its output goes through {call.name}")


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
    if call.tag.dim in gone:
        raise NotFollowedError("it has one feature")
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
            short_name(user) == "slice"
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


def _index(call: Call) -> Tag:
    """A list of places along another dimension leaves the divided one as it is."""
    taken = [(dim, places) for dim, places in enumerate(call.args[1]) if places is not None]
    if len(taken) != 1 or taken[0][0] == call.tag.dim or len(shape_of(taken[0][1])) != 1:
        raise NotFollowedError("its output goes through index")
    return call.tag


def _reduced(call: Call) -> Tag:
    shape = shape_of(call.args[0])
    given = call.argument(1)
    dims = [given] if isinstance(given, int) else given
    if not dims or call.tag.dim in {dim % len(shape) for dim in dims}:
        raise NotFollowedError(f"its features are reduced by {call.name}")
    kept = len(shape_of(call.node)) == len(shape)
    gone = 0 if kept else sum(dim % len(shape) < call.tag.dim for dim in dims)
    return call.tag.moved(call.tag.dim - gone)


def _reduced_or_compared(call: Call) -> Tag:
    """Of two tensors it takes the larger elements, of one those along a dimension."""
    return pointwise(call) if isinstance(call.argument(1), Node) else _reduced(call)


def _scan(call: Call) -> Tag:
    if call.args[1] % len(shape_of(call.node)) == call.tag.dim:
        raise NotFollowedError(f"its features are compared by {call.name}")
    return call.tag


def _as_complex(call: Call) -> Tag:
    """Pairs along the last dimension become numbers, and back."""
    if call.name == "view_as_complex" and call.tag.dim == len(shape_of(call.args[0])) - 1:
        raise NotFollowedError("its features are taken for complex numbers")
    return call.tag


def _made_like(call: Call) -> Tag:
    """A tensor that code makes with as many of what is divided as another has, to be written to."""
    shape = shape_of(call.node)
    if len(shape) <= call.tag.dim or shape[call.tag.dim] != shape_of(call.args[0])[call.tag.dim]:
        raise NotFollowedError(f"its output's shape is taken for another by {call.name}")
    return call.tag


def _norm(call: Call) -> Tag:
    if call.tag.dim >= len(shape_of(call.node)) - len(call.args[1]):
        raise NotFollowedError("its features are normalised together")
    return call.tag


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
    **dict.fromkeys(("expand", "broadcast_to"), _aligned_right),
    "index": _index,
    "repeat_interleave": _repeat_interleave,
    **dict.fromkeys(("split", "split_with_sizes", "chunk"), _split),
    "slice": _slice,
    **dict.fromkeys(("select", "unbind"), _pick),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "var", "std", "norm", "logsumexp"), _reduced),
    **dict.fromkeys(("max", "min"), _reduced_or_compared),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "_softmax"), _scan),
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm),
    **dict.fromkeys(("cat", "stack"), joined),
    **dict.fromkeys(("new_empty", "new_zeros", "empty_like", "zeros_like"), _made_like),
    "copy_": pointwise,
    **dict.fromkeys(("view_as_complex", "view_as_real"), _as_complex),
    "scaled_dot_product_attention": attention,
    **dict.fromkeys(("matmul", "bmm", "baddbmm"), matmul),
}
