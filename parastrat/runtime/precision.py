"""Number formats: autocast for DDP and one process, policies for FSDP2, the loss scale of fp16."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from parastrat.runtime.tensors.buffers import norms_with_statistics
from parastrat.runtime.tensors.shares import share_of
from parastrat.workload import Precision

#: what the forward computes in, where that differs from the weights
COMPUTE = {Precision.BF16_MIXED: torch.bfloat16, Precision.FP16_MIXED: torch.float16}

#: the loss scale's schedule is that of ``torch.amp.GradScaler``
INITIAL_SCALE = 2.0**16
GROWTH, BACKOFF, GROWTH_INTERVAL = 2.0, 0.5, 2000


def weight_dtype(precision: Precision) -> torch.dtype:
    """Return the format of the weights that the optimizer updates."""
    return torch.bfloat16 if precision is Precision.BF16 else torch.float32


def cast_weights(module: nn.Module, precision: Precision) -> list[str]:
    """Bring floating-point parameters into the plan's format, in place; return the names of those changed.

    Parameters stay the same objects. Buffers keep their format: rotary frequencies and running
    statistics lose too much in a short one. Norms with such statistics take no short weights with them.
    """
    dtype = weight_dtype(precision)
    kept = {parameter for norm in norms_with_statistics(module) for parameter in norm.parameters()}
    changed = []
    for name, parameter in module.named_parameters():
        if parameter in kept and parameter.dtype is torch.float32:
            continue
        if parameter.is_floating_point() and parameter.dtype is not dtype:
            parameter.data = parameter.data.to(dtype)
            changed.append(name)
    return changed


def policy(precision: Precision) -> MixedPrecisionPolicy:
    """Return FSDP2's policy: gather and compute in the short format, reduce gradients in fp32."""
    if precision is Precision.FP32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=COMPUTE.get(precision), reduce_dtype=torch.float32)


def autocast_forward(module: nn.Module, device: torch.device, precision: Precision) -> bool:
    """Run the module's forward under autocast, with unchanged keys; return whether the plan asks for it."""
    if precision not in COMPUTE:
        return False
    # under torch's own name the method stays inspectable (signatures are read by Hugging Face)
    replace_forward(module, torch.autocast(device.type, COMPUTE[precision]))
    return True


def replace_forward(module: nn.Module, around: Callable[[Any], Any]) -> None:
    """Put something around a module's forward; copies of the module run their own weights, not its."""
    forward = module.forward
    if isinstance(forward, MethodType) and forward.__self__ is module:
        # copy.deepcopy binds methods to the copy
        module.forward = MethodType(around(forward.__func__), module)
    else:
        module.forward = around(forward)


class LossScale:
    """The dynamic factor that keeps fp16 gradients above the smallest number, equal on all ranks."""

    def __init__(self) -> None:
        self.scale = INITIAL_SCALE
        self._good_steps = 0

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale, "good_steps": float(self._good_steps)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale, self._good_steps = float(state["scale"]), int(state["good_steps"])

    def scale_earlier_(self, model: nn.Module) -> None:
        """Multiply gradients that are there already by the scale, as ``unscale_`` will divide them too."""
        for parameter in model.parameters():
            if parameter.grad is not None:
                share_of(parameter.grad).mul_(self.scale)

    def unscale_(self, model: nn.Module) -> bool:
        """Divide all gradients by the scale and adapt it; return whether the step counts.

        If any rank's gradient is infinite or not a number, all ranks drop their gradients (the optimizer
        skips parameters without one) and the scale halves.
        """
        gradients = [share_of(p.grad) for p in model.parameters() if p.grad is not None]
        if not gradients and not dist.is_initialized():
            return True
        found = torch.zeros((), device=next(model.parameters()).device)
        if gradients:
            torch._amp_foreach_non_finite_check_and_unscale_(
                gradients, found, torch.full_like(found, 1.0 / self.scale)
            )
        if dist.is_initialized():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)
        if not found.item():
            self._grow()
            return True
        for parameter in model.parameters():
            parameter.grad = None
        self.scale *= BACKOFF
        self._good_steps = 0
        return False

    def _grow(self) -> None:
        self._good_steps += 1
        if self._good_steps == GROWTH_INTERVAL:
            self.scale *= GROWTH
            self._good_steps = 0
