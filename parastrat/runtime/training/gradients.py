"""Gradient clipping by the norm of the whole model, wherever its parts are.

torch's own ``clip_grad_norm_`` asks all ranks that hold shards of a DTensor, but not the other stages of a
pipeline: each would clip by its own norm. It is told of them here.
"""

from __future__ import annotations

import math
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad

from parastrat.runtime.wrapping import is_wrapped, wrapping_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.wrapping import Wrapping

#: torch's own
_norm = nn.utils.get_total_norm
#: wrapped models of which this rank has some stages
_in_stages: WeakSet[nn.Module] = WeakSet()


def clip_grad_norm_(model: nn.Module, max_norm: float, *, norm_type: float = 2.0) -> torch.Tensor:
    """Scale all gradients so that their norm over the whole model is at most ``max_norm``.

    Args:
        model: What ``auto_parallelize`` returned.
        max_norm: Greatest norm allowed.
        norm_type: The p of the p-norm.

    Returns:
        The norm before clipping, the same on every rank.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    pipeline = wrapping_of(model).pipeline if is_wrapped(model) else None
    norm = _norm(gradients, norm_type) if pipeline is None else _over_stages(gradients, norm_type, pipeline)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def clip_alike(model: nn.Module, wrapping: Wrapping) -> None:
    """Let torch's own norm of a model's gradients be that over all of its stages."""
    if wrapping.pipeline is None:
        return
    _in_stages.add(model)
    # clip_grad_norm_, which scripts may hold by another name, calls it by the first of these
    places: tuple[tuple[Any, str], ...] = ((clip_grad, "_get_total_norm"), (nn.utils, "get_total_norm"))
    for module, name in places:
        setattr(module, name, _total_norm)


@wraps(_norm)
def _total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    gradients = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    pipeline = _pipeline_of(gradients)
    if pipeline is None:
        return _norm(gradients, norm_type, error_if_nonfinite, foreach)
    norm = _over_stages(gradients, norm_type, pipeline)
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients of all stages is {norm.item()}, and "
            "error_if_nonfinite=True asks for an error then"
        )
    return norm


def _pipeline_of(gradients: Sequence[torch.Tensor]) -> Pipeline | None:
    """Return whose gradients these are; where there are none, of the model that others have some of."""
    asked = {id(each) for each in gradients}
    for model in _in_stages:
        if not asked or any(id(each.grad) in asked for each in model.parameters() if each.grad is not None):
            return wrapping_of(model).pipeline
    return None


def _over_stages(gradients: Sequence[torch.Tensor], norm_type: float, pipeline: Pipeline) -> torch.Tensor:
    """Return the norm of gradients over all stages of a pipeline, of each once; all its ranks call it."""
    if pipeline.wrapping.mixing is not None:
        pipeline.wrapping.mixing.clipped()
    elsewhere = {id(each.grad) for each in pipeline.counted_elsewhere if each.grad is not None}
    norm = _norm([each for each in gradients if id(each) not in elsewhere], norm_type)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    norm = norm.to(pipeline.wrapping.device)
    if math.isinf(norm_type):
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=pipeline.group)
        return norm
    power = norm**norm_type
    dist.all_reduce(power, group=pipeline.group)
    return power ** (1 / norm_type)
