"""What a loop with a bare ``loss.backward()`` must know of its plan."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.errors import WrapError
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.runtime.wrapping import Wrapping


def guard_plain_loop(model: nn.Module, wrapping: Wrapping) -> None:
    """Refuse fp16 without loss scaling, and warn once of a smaller global batch than planned.

    Only forwards that will be differentiated outside of ``forward_backward`` count.
    """
    plan = wrapping.plan
    if plan.mesh.pp > 1:
        return  # its stages cannot be called outside of it
    if plan.precision is not Precision.FP16_MIXED and plan.gradient_accumulation_steps == 1:
        return

    def check(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        if wrapping.stepping or not torch.is_grad_enabled():
            return
        if plan.precision is Precision.FP16_MIXED:
            raise WrapError(
                "fp16-mixed needs its loss scaled, which a plain loss.backward() does not do",
                hint="train with parastrat.forward_backward(model, inputs, targets, loss_fn=...), "
                "or plan --precision bf16-mixed; evaluate under torch.no_grad()",
            )
        hook.remove()
        steps, micro = plan.gradient_accumulation_steps, plan.micro_batch_size
        warnings.warn(
            f"the plan's global batch is {plan.global_batch_size} ({micro} x {steps} accumulation steps x "
            f"{plan.mesh.dp} ranks), but this loop steps after every micro-batch: {micro * plan.mesh.dp}; "
            f"parastrat.forward_backward accumulates",
            stacklevel=3,
        )

    hook = model.register_forward_pre_hook(check)
