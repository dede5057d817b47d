"""Logits that stay divided up to their cross entropy, by vocabulary or by positions.

To all code they are the whole logits: what is not known to work on shares gathers them first, so that the
result is the same for any loss. Only ``forward_backward`` hands them out: all its ranks run the same code.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_any, tree_map

from parastrat.errors import WrapError

_Function = Callable[..., Any]

#: functions that leave the vocabulary the last dimension, or change it, which their result's shape tells
_SHAPES = {
    torch.Tensor.view,
    torch.Tensor.reshape,
    torch.Tensor.flatten,
    torch.Tensor.unsqueeze,
    torch.Tensor.squeeze,
    torch.flatten,
    torch.reshape,
}
#: functions of every element by itself, with numbers alone
_ELEMENTWISE = {
    torch.Tensor.float,
    torch.Tensor.to,
    torch.Tensor.contiguous,
    torch.Tensor.mul,
    torch.Tensor.div,
    torch.Tensor.__mul__,
    torch.Tensor.__rmul__,
    torch.Tensor.__truediv__,
    torch.Tensor.tanh,
    torch.tanh,
}


def _getters(*names: str) -> set[_Function]:
    return {getattr(torch.Tensor, name).__get__ for name in names}


#: what is asked of a tensor, whose answer does not depend on the vocabulary
_ASKED = {
    torch.Tensor.register_hook,
    torch.Tensor.is_floating_point,
    torch.is_floating_point,
    torch.Tensor.is_complex,
    torch.is_complex,
} | _getters("requires_grad", "grad_fn", "is_leaf", "device", "dtype", "layout", "is_meta", "is_cuda")
#: of what a tensor is a view: of nothing, as the whole would be; FSDP2 asks it of outputs
(_BASE,) = _getters("_base")
#: what is asked where the answer depends on the vocabulary
_SIZES = {
    torch.Tensor.size,
    torch.Tensor.dim,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.__len__,
} | _getters("shape", "ndim")


@dataclass(slots=True, kw_only=True)
class _Kept:
    """Whether heads hand out shares now, and how many cross entropies were computed from them."""

    running: bool = False
    computed: int = 0


_kept = _Kept()


@contextmanager
def logits_divided() -> Iterator[None]:
    """Let heads hand out shares inside."""
    _kept.running = True
    try:
        yield
    finally:
        _kept.running = False


def cross_entropies_computed() -> int:
    """Return how many cross entropies have been computed from shares."""
    return _kept.computed


def logits(own: torch.Tensor, whole: Whole) -> torch.Tensor:
    """Return the logits of which this rank has its share: gathered, or to be gathered.

    The share may be divided itself: that of some positions by vocabulary.
    """
    return _divided(own, whole) if _kept.running else whole.gathered(own)


def in_whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return what is no share: the whole of one, or the tensor itself."""
    return _gathered(tensor) if isinstance(tensor, Logits) else tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Entropy:
    """What a mean or sum of cross entropies, or all of them, is asked of."""

    #: the column of each row, over all ranks
    target: torch.Tensor
    #: the target of rows that do not count
    ignored: int
    smoothing: float
    #: mean, sum or none
    reduction: str


@dataclass(slots=True, kw_only=True)
class Whole(ABC):
    """The whole of which a share is known."""

    shape: tuple[int, ...]
    #: once gathered
    values: list[torch.Tensor] = field(default_factory=list)
    #: how a rank's share is divided further; None: it is not
    further: Whole | None = None

    @abstractmethod
    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return the whole of this share."""

    @abstractmethod
    def share(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the shape of a rank's share of the whole in another shape; None where it has none."""

    @abstractmethod
    def reads(self, index: tuple[Any, ...], dims: int) -> bool:
        """Return whether an index takes of a share what it takes of the whole, in so many dimensions."""

    @abstractmethod
    def cross_entropy(self, own: torch.Tensor, asked: Entropy) -> torch.Tensor | None:
        """Return the cross entropy of rows of which this is the share; None where it takes the whole."""


class Logits(torch.Tensor):
    """A share of logits."""

    #: how the whole looks, of which it is a share
    whole: Whole

    @classmethod
    def __torch_function__(
        cls, func: _Function, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        alone = isinstance(first, Logits) and not tree_any(_is_logits, (args[1:], kwargs))
        if alone and isinstance(first, Logits):
            if func == _BASE:
                return None
            if func in _ASKED:
                # of the share itself: hooks of an alias would never run
                with _as_tensor():
                    return func(*args, **kwargs)
            stand_in = torch.empty(first.whole.shape, dtype=_own(first).dtype, device="meta")
            if func in _SIZES:
                return func(stand_in, *args[1:], **kwargs)
            _check_in_place(func)
            found = _of_share(_Call(first, stand_in, func, args[1:], kwargs))
            if found is not None:
                return found
        gathered = tree_map(lambda leaf: _gathered(leaf) if _is_logits(leaf) else leaf, (args, kwargs))
        return func(*gathered[0], **gathered[1])


def _as_tensor() -> AbstractContextManager[None]:
    """Let torch take shares for what they hold; it has no public name for it."""
    plain: AbstractContextManager[None] = torch._C.DisableTorchFunctionSubclass()  # noqa: SLF001
    return plain


def _is_logits(leaf: Any) -> bool:
    return isinstance(leaf, Logits)


def _own(share: Logits) -> torch.Tensor:
    """Return what this rank has of the whole, which may be to be gathered itself."""
    further = share.whole.further
    with _as_tensor():
        own = share.as_subclass(torch.Tensor)
    return own if further is None else _share(own, further)


def _divided(own: torch.Tensor, whole: Whole) -> Logits:
    if not isinstance(own, Logits):
        return _share(own, replace(whole, further=None))
    with _as_tensor():
        return _share(own.as_subclass(torch.Tensor), replace(whole, further=own.whole))


def _share(own: torch.Tensor, whole: Whole) -> Logits:
    share = own.as_subclass(Logits)
    share.whole = whole
    return share


def _gathered(share: Logits) -> torch.Tensor:
    whole = share.whole
    if whole.values:
        return whole.values[0]
    values = whole.gathered(in_whole(_own(share)))
    if torch.is_grad_enabled():  # without, it would cut later uses off from backward
        whole.values.append(values)
    return values


def _check_in_place(func: _Function) -> None:
    name = getattr(func, "__name__", "")
    if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):
        raise WrapError(
            f"{name} would change the head's output in place, of which each rank has a share",
            hint="write it without changing in place, or plan with loss_parallel = false",
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of one share."""

    share: Logits
    #: in the shape of the whole, without values
    stand_in: torch.Tensor
    func: _Function
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def _of_share(call: _Call) -> Any:
    """Return the function's result from the share, or None where it needs the whole."""
    if call.func is functional.cross_entropy:
        return _cross_entropy(call)
    if tree_any(lambda leaf: isinstance(leaf, torch.Tensor), (call.args, call.kwargs)):
        return None
    own, whole = _own(call.share), call.share.whole
    if call.func in _ELEMENTWISE:
        return _divided(call.func(own, *call.args, **call.kwargs), replace(whole, values=[]))
    shaped = call.func in _SHAPES or (call.func is torch.Tensor.__getitem__ and _is_read(call))
    if not shaped:
        return None
    shape = tuple(call.func(call.stand_in, *call.args, **call.kwargs).shape)
    if call.func is torch.Tensor.__getitem__:
        return _divided(call.func(own, *call.args), replace(whole, shape=shape, values=[]))
    share = whole.share(shape)
    return None if share is None else _divided(own.reshape(share), replace(whole, shape=shape, values=[]))


def _is_read(call: _Call) -> bool:
    """Return whether an index takes from the share what it takes from the whole."""
    index = call.args[0] if isinstance(call.args[0], tuple) else (call.args[0],)
    if not all(item is Ellipsis or isinstance(item, slice | int) for item in index):
        return False
    return call.share.whole.reads(index, call.stand_in.ndim)


def _cross_entropy(call: _Call) -> torch.Tensor | None:
    given = _CROSS_ENTROPY.bind(call.share, *call.args, **call.kwargs)
    given.apply_defaults()
    asked = given.arguments
    target = asked["target"]
    usual = {"weight": None, "size_average": None, "reduce": None}
    if any(asked[name] != value for name, value in usual.items()) or call.stand_in.ndim != 2:
        return None
    if target.ndim != 1 or target.is_floating_point() or asked["reduction"] not in _REDUCED:
        return None
    own = _own(call.share)
    if torch.is_autocast_enabled(own.device.type):  # as torch does
        own = own.float()
    found = call.share.whole.cross_entropy(
        own,
        Entropy(
            target=target,
            ignored=asked["ignore_index"],
            smoothing=asked["label_smoothing"],
            reduction=asked["reduction"],
        ),
    )
    _kept.computed += found is not None
    return found


_CROSS_ENTROPY = inspect.signature(functional.cross_entropy)
_REDUCED = ("mean", "sum", "none")
