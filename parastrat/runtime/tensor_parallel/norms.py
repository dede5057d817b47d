"""Norms over features of which each rank has a share, as those of all heads' queries in OLMo 2.

What such a module works out of all features, a mean or a sum of them, is added up over the ranks; the rest
it does element by element with this rank's share of its weights. Two small messages stand for gathering
queries and keys, and for attention over all heads on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from parastrat.runtime.communication.flow import all_reduced, exchanged

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: operators of an exported graph that a norm puts its features together with, all known below
TOGETHER = frozenset({"mean", "sum", "rms_norm", "layer_norm"})


def may_normalise(module: nn.Module) -> bool:
    """Return whether a module has the structure of a norm: no parts, and weights for each feature alone."""
    shapes = {tuple(parameter.shape) for parameter in module.parameters()}
    return next(module.children(), None) is None and len(shapes) == 1 and len(next(iter(shapes))) == 1


def normalise_together(module: nn.Module, mesh: DeviceMesh) -> None:
    """Let a norm, which is given a share of the features, normalise by those of all ranks."""
    forward = module.forward

    @wraps(forward)
    def together(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        with _OverRanks(mesh, x.shape[-1]):
            return forward(x, *args, **kwargs)

    module.forward = together


class _OverRanks(TorchFunctionMode):
    """Means and sums of a share of the features become those of all ranks' features."""

    def __init__(self, mesh: DeviceMesh, features: int) -> None:
        super().__init__()
        self._mesh, self._features = mesh, features

    def __torch_function__(
        self, func: Any, _types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        known = _KNOWN.get(func)
        if known is None or not args or args[0].shape[-1:] != (self._features,):
            return func(*args, **kwargs or {})
        return known(self, func, *args, **kwargs or {})

    def reduced(self, func: Any, x: torch.Tensor, dim: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return a mean or sum along dimensions; over ranks if that of features is the only one."""
        dims = [dim] if isinstance(dim, int) else list(dim or ())
        found = func(x, dim, *args, **kwargs)
        if [each % x.ndim for each in dims] != [x.ndim - 1]:
            return found
        return self._added_up(found, self._mesh.size() if func in _MEANS else 1)

    def rms_norm(
        self, _func: Any, x: torch.Tensor, _shape: Any, weight: Any = None, eps: float | None = None
    ) -> torch.Tensor:
        """RMS norm in fp32 or wider, as torch computes it."""
        wide = x.float() if x.dtype in _HALF else x
        square = self._mean(wide.pow(2)) + (torch.finfo(wide.dtype).eps if eps is None else eps)
        normed = wide * torch.rsqrt(square)
        return (normed if weight is None else normed * weight).type_as(x)

    def layer_norm(
        self,
        _func: Any,
        x: torch.Tensor,
        _shape: Any,
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> torch.Tensor:
        """Layer norm in fp32 or wider, as torch computes it."""
        wide = x.float() if x.dtype in _HALF else x
        centred = wide - self._mean(wide)
        normed = centred * torch.rsqrt(self._mean(centred.pow(2)) + eps)
        normed = normed if weight is None else normed * weight
        return (normed if bias is None else normed + bias).type_as(x)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        return self._added_up(x.mean(-1, keepdim=True), self._mesh.size())

    def _added_up(self, share: torch.Tensor, parts: int) -> torch.Tensor:
        """Return the sum over ranks, which each uses for its own features: gradients are added up too."""

        def over_ranks(each: torch.Tensor) -> torch.Tensor:
            return all_reduced(each / parts if parts > 1 else each, self._mesh)

        return exchanged(share, over_ranks, over_ranks)


_HALF = (torch.float16, torch.bfloat16)
_MEANS = (torch.mean, torch.Tensor.mean)
_KNOWN: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((*_MEANS, torch.sum, torch.Tensor.sum), _OverRanks.reduced),
    **dict.fromkeys((functional.rms_norm, torch.rms_norm), _OverRanks.rms_norm),
    **dict.fromkeys((functional.layer_norm, torch.layer_norm), _OverRanks.layer_norm),
}
