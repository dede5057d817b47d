"""Loss scaling by torch's own ``GradScaler``, which leaves a step out where a gradient is infinite.

Each rank's scaler looks at what the rank holds. Of DTensors torch asks other ranks as the placements of the
first gradient say: where that is whole, as a norm's under tensor parallelism, those of divided weights are
not asked for, and stages of a pipeline never are. The rank that has the infinity would leave the step out
and halve its scale, and the others would not. So all ranks are told here.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.amp import GradScaler

from parastrat.runtime.wrapping import wrapping_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

#: wrapped models of which a rank holds a part
_divided: WeakSet[nn.Module] = WeakSet()


def scale_alike(model: nn.Module, wrapping: Wrapping) -> None:
    """Let torch's scalers decide for all ranks at once whether a wrapped model takes a step."""
    mesh = wrapping.plan.mesh
    if mesh.tp == 1 and mesh.pp == 1:
        return  # gradients are whole, or all of them are divided alike
    _divided.add(model)
    if not hasattr(GradScaler._unscale_grads_, "__wrapped__"):  # what both of its ways ask
        scaler: Any = GradScaler
        scaler._unscale_grads_ = _telling(scaler._unscale_grads_)
        scaler._check_scale_growth_tracker = _begun(scaler._check_scale_growth_tracker)  # noqa: SLF001


def _telling(unscale: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's method that looks at an optimizer's gradients, which then asks the other ranks."""

    @wraps(unscale)
    def told(scaler: Any, optimizer: Any, inv_scale: Any, found_inf: Any, allow_fp16: Any) -> Any:
        found: dict[torch.device, torch.Tensor] = unscale(
            scaler, optimizer, inv_scale, found_inf, allow_fp16
        )
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for model in _divided:
            if any(id(parameter) in held for parameter in model.parameters()):
                _tell(found, found_inf, wrapping_of(model).device)
                break
        return found

    return told


def _tell(found: dict[torch.device, torch.Tensor], own: torch.Tensor, device: torch.device) -> None:
    """Mark what was found, by device, as infinite where it is so on any rank; all ranks call it."""
    infinite = _greatest(found.values(), device)
    # a stage may be without gradients: the scaler of its rank would say that nothing was looked at
    message = torch.stack([infinite, torch.full_like(infinite, len(found) > 0)])
    dist.all_reduce(message, op=dist.ReduceOp.MAX)
    for each in found.values():
        each.copy_(message[0])
    if not found and message[1]:
        found[own.device] = own.copy_(message[0])


def _greatest(values: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    known = [torch.zeros((), device=device), *(each.to(device) for each in values)]
    return torch.stack(known).max()


def _begun(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's method that asks for a scale, which ranks have then that compute no loss to scale."""

    @wraps(check)
    def checked(scaler: Any, asked_by: str) -> Any:
        if scaler._scale is None:  # noqa: SLF001  (no public way)
            for model in _divided:
                wrapping = wrapping_of(model)
                if wrapping.pipeline is not None and not wrapping.pipeline.holds_last:
                    scaler._lazy_init_scale_growth_tracker(wrapping.device)  # noqa: SLF001  (as above)
                    break
        return check(scaler, asked_by)

    return checked
