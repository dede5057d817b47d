"""A loss for a model that is traced: its own, or the one that its output suggests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from parastrat.errors import ModelError
from parastrat.runtime.tensors.leaves import tensors_in


def example_loss(output: Any, *, in_fp32: bool) -> torch.Tensor:
    """Return a scalar to begin backward from, as ``loss_of`` makes it of ``read_by_loss``."""
    return loss_of(read_by_loss(output), in_fp32=in_fp32)


def read_by_loss(output: Any) -> list[torch.Tensor]:
    """Return what a loss reads of an output.

    The output's ``loss``; an output that is a scalar; its ``logits``; its first tensor with a gradient. A
    scalar behind others is a part of a loss, such as what a codebook adds, where it trains less than they.

    Args:
        output: what the forward returned.

    Raises:
        ModelError: if nothing in the output depends on a trainable parameter.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return [own]
    found = [
        leaf for leaf in tensors_in(_logits(output)) if leaf.requires_grad and leaf.is_floating_point()
    ]
    if not found:
        raise ModelError(
            "the forward returned nothing that depends on a trainable parameter",
            hint="return a tensor, a tuple or dict of them, or an object with .loss",
        )
    scalar = next((leaf for leaf in found if leaf.ndim == 0), None)
    if scalar is None or scalar is found[0]:
        return found[:1]
    return [scalar] if _trained(found[0]) <= _trained(scalar) else [found[0], scalar]


def loss_of(read: list[torch.Tensor], *, in_fp32: bool) -> torch.Tensor:
    """Return a scalar: that of one tensor, or the sum of several tensors' ones.

    Args:
        read: what the loss reads.
        in_fp32: compute cross entropy in fp32, as autocast does.
    """
    first, *others = (_loss_of(tensor, in_fp32=in_fp32) for tensor in read)
    return sum(others, first)


def _loss_of(read: torch.Tensor, *, in_fp32: bool) -> torch.Tensor:
    """Return itself, cross entropy on the last dimension of logits, or the mean of anything else."""
    if read.ndim == 0:
        return read
    if read.ndim not in {2, 3}:
        return read.float().mean() if in_fp32 else read.mean()
    rows = (read.float() if in_fp32 else read).flatten(0, -2)
    targets = torch.zeros(rows.shape[0], dtype=torch.long, device=rows.device)
    return functional.cross_entropy(rows, targets)


def _trained(tensor: torch.Tensor) -> set[torch.Tensor]:
    """Return the leaves that get gradients from a tensor."""
    waiting = [torch.autograd.graph.get_gradient_edge(tensor).node]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        following = {after for after, _ in node.next_functions if after is not None} - seen
        seen |= following
        waiting += following
    return {node.variable for node in seen if hasattr(node, "variable")}


def _logits(output: Any) -> Any:
    """Return the ``logits`` of an output that names its parts, else all of it."""
    if isinstance(output, Mapping):
        return output.get("logits", list(output.values()))
    return getattr(output, "logits", output)
