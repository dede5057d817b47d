"""Gradient clipping by the norm of the whole model, wherever its parts are."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from parastrat.runtime.wrapping import is_wrapped, wrapping_of


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
    pipeline = wrapping_of(model).pipeline if is_wrapped(model) else None
    elsewhere = set() if pipeline is None else pipeline.counted_elsewhere
    counted = [p.grad for p in parameters if p.grad is not None and p not in elsewhere]
    norm = nn.utils.get_total_norm(counted, norm_type)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if pipeline is not None:
        norm = _over_stages(norm.to(pipeline.wrapping.device), norm_type, pipeline.group)
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


def _over_stages(norm: torch.Tensor, norm_type: float, group: dist.ProcessGroup) -> torch.Tensor:
    """Return the norm over all stages of a pipeline from those of each."""
    if math.isinf(norm_type):
        dist.all_reduce(norm, op=dist.ReduceOp.MAX, group=group)
        return norm
    power = norm**norm_type
    dist.all_reduce(power, group=group)
    return power ** (1 / norm_type)
