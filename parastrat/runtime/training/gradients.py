"""Gradient clipping by the norm of the whole model, wherever its parts are.

torch's own ``clip_grad_norm_`` asks all ranks that hold shards of a DTensor, but not the other stages of a
pipeline: each would clip by its own norm. And it takes DTensors of one mesh alone, where experts are
divided over other ranks than what is around them. It is told of both here.
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

from parastrat.runtime.wrapped import is_wrapped
from parastrat.runtime.wrapping import wrapping_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.pipeline.mixing import Mixing
    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.wrapping import Wrapping

#: torch's own
_norm, _scale_alike = nn.utils.get_total_norm, nn.utils.clip_grads_with_norm_
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
    wrapping = wrapping_of(model) if is_wrapped(model) else None
    if wrapping is None or wrapping.pipeline is None:
        norm = _over_meshes(gradients, norm_type)
    else:
        norm = _over_stages(gradients, norm_type, wrapping.pipeline, wrapping.mixing)
    _scale(parameters, max_norm, norm)
    return norm


def clip_alike(model: nn.Module, wrapping: Wrapping) -> None:
    """Let torch's own norm of a model's gradients be that over all of its stages, and meshes."""
    if wrapping.pipeline is None and wrapping.experts is None:
        return
    if wrapping.pipeline is not None:
        _in_stages.add(model)
    # clip_grad_norm_, which scripts may hold by another name, calls these by their first names
    of_torch: Any = clip_grad
    of_torch._get_total_norm = nn.utils.get_total_norm = _total_norm  # noqa: SLF001  (there is no public way)
    of_torch._clip_grads_with_norm_ = nn.utils.clip_grads_with_norm_ = _scale


@wraps(_norm)
def _total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False, foreach: bool | None = None
) -> torch.Tensor:
    gradients = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    wrapping = _wrapping_of(gradients)
    if wrapping is not None and wrapping.pipeline is not None:
        norm = _over_stages(gradients, norm_type, wrapping.pipeline, wrapping.mixing)
    elif len(_by_mesh(gradients)) > 1:
        norm = _over_meshes(gradients, norm_type)
    else:
        return _norm(gradients, norm_type, error_if_nonfinite, foreach)
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients of all ranks is {norm.item()}, and "
            "error_if_nonfinite=True asks for an error then"
        )
    return norm


def _wrapping_of(gradients: Sequence[torch.Tensor]) -> Wrapping | None:
    """Return that of the model in stages whose gradients these are; of none, whose others have some of."""
    asked = {id(each) for each in gradients}
    for model in _in_stages:
        if not asked or any(id(each.grad) in asked for each in model.parameters() if each.grad is not None):
            return wrapping_of(model)
    return None


@wraps(_scale_alike)
def _scale(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None) -> None:
    several = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    norm = total_norm.full_tensor() if isinstance(total_norm, DTensor) else total_norm
    for alike in _by_mesh(several):
        _scale_alike(alike, max_norm, norm, foreach)


def _by_mesh(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return tensors by the mesh over which they are divided; torch takes those of one at a time."""
    found: dict[DeviceMesh | None, list[torch.Tensor]] = {}
    for each in tensors:
        found.setdefault(each.device_mesh if isinstance(each, DTensor) else None, []).append(each)
    return list(found.values())


def _over_meshes(gradients: Sequence[torch.Tensor], norm_type: float) -> torch.Tensor:
    """Return the norm of gradients that are divided over several meshes, as those of experts are."""
    norms = [_norm(alike, norm_type) for alike in _by_mesh(gradients) or [[]]]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in norms]
    return whole[0] if len(whole) == 1 else torch.linalg.vector_norm(torch.stack(whole), norm_type)


def _over_stages(
    gradients: Sequence[torch.Tensor], norm_type: float, pipeline: Pipeline, mixing: Mixing | None
) -> torch.Tensor:
    """Return the norm of gradients over all stages of a pipeline, of each once; all its ranks call it."""
    if mixing is not None:
        mixing.clipped()
    elsewhere = {id(each.grad) for each in pipeline.counted_elsewhere if each.grad is not None}
    norm = _over_meshes([each for each in gradients if id(each) not in elsewhere], norm_type)
    norm = norm.to(pipeline.wrapping.device)
    if math.isinf(norm_type):
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=pipeline.group)
        return norm
    power = norm**norm_type
    dist.all_reduce(power, group=pipeline.group)
    return power ** (1 / norm_type)
