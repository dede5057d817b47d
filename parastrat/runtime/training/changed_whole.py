"""Results over divided tensors that a script changes in place, as ``norm.clamp_(min=eps)``: whole before.

What a reduction makes of a DTensor is a part of the result on each rank. torch puts the parts together
where something new is computed of them, and refuses to where they are to be changed in place (2.13:
"in-place operations that require placement changes are not supported"), which is how adaptive clipping and
many optimizers of others write their norms and ratios. So they are put together in place first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.wrapping import Wrapping

#: what torch says before anything is sent or written
_REFUSED = "in-place operations that require placement changes"
_ATEN = torch.ops.aten
#: by which parts may not be changed, as torch knows them for DTensors
_CHANGES: tuple[Any, ...] = (
    _ATEN.abs_.default,
    _ATEN.add_.Scalar,
    _ATEN.add_.Tensor,
    _ATEN.clamp_.default,
    _ATEN.clamp_.Tensor,
    _ATEN.clamp_max_.default,
    _ATEN.clamp_max_.Tensor,
    _ATEN.clamp_min_.default,
    _ATEN.clamp_min_.Tensor,
    _ATEN.div_.Tensor,
    _ATEN.exp_.default,
    _ATEN.log_.default,
    _ATEN.mul_.Tensor,
    _ATEN.pow_.Scalar,
    _ATEN.pow_.Tensor,
    _ATEN.reciprocal_.default,
    _ATEN.rsqrt_.default,
    _ATEN.sqrt_.default,
    _ATEN.sub_.Tensor,
)


def change_whole(wrapping: Wrapping) -> None:
    """Let parts be put together where they are changed in place, if a wrapped model's tensors have such."""
    if not (wrapping.plan.shards_parameters or wrapping.plan.mesh.tp > 1):
        return
    handlers = _handlers()
    handlers.update({each: _change for each in _CHANGES if each not in handlers})


def _handlers() -> dict[Any, Any]:
    dispatcher: Any = DTensor._op_dispatcher  # noqa: SLF001  (no public way: torch refuses in it)
    handlers: dict[Any, Any] = dispatcher._custom_op_handlers  # noqa: SLF001  (as above)
    return handlers


def _change(operator: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    named = any(map(torch.is_tensor, keywords.values()))
    if isinstance(args[0], DTensor) and not named and all(_is_alike(args[0], other) for other in args):
        # what has no parts each rank changes by itself, sooner than torch asks how
        operator(*(_own(each) for each in args), **keywords)
        return args[0]
    handlers = _handlers()
    own = handlers.pop(operator)
    try:
        try:
            # parts are added to parts, and scaled, without a message
            return operator(*args, **keywords)
        except RuntimeError as error:
            parts = args[0]
            if _REFUSED not in str(error) or not isinstance(parts, DTensor):
                raise
        _put_together(parts)
        return operator(*args, **keywords)
    finally:
        handlers[operator] = own


def _is_alike(changed: DTensor, other: Any) -> bool:
    """Return whether a rank changes what it has of a tensor by what it has of another one, or a number."""
    if not isinstance(other, DTensor):
        return not isinstance(other, torch.Tensor) or other.ndim == 0
    own, given = changed._spec, other._spec  # noqa: SLF001  (the public way makes copies)
    if any(placement.is_partial() for placement in own.placements):
        return False
    return bool(own.mesh == given.mesh and own.placements == given.placements and own.shape == given.shape)


def _own(value: Any) -> Any:
    return value._local_tensor if isinstance(value, DTensor) else value  # noqa: SLF001  (as above)


def _put_together(parts: DTensor) -> None:
    """Let a DTensor hold the whole where it holds a part of it; all ranks of its mesh call it."""
    placements = [Replicate() if each.is_partial() else each for each in parts.placements]
    inside: Any = parts
    whole = inside.detach().redistribute(placements=placements)
    inside._local_tensor, inside._spec = whole._local_tensor, whole._spec  # noqa: SLF001  (there is no public way)
