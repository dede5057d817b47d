"""Gradient clipping by the norm of the whole model, wherever its parts are."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.tensor import DTensor


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
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], norm_type)
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
