"""A loss for a model that is traced: its own, or the one that its output suggests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from parastrat.errors import ModelError


def example_loss(output: Any, *, in_fp32: bool) -> torch.Tensor:
    """Return a scalar to begin backward from.

    The output's ``loss``; an output that is a scalar; cross entropy on the last dimension of logits; the
    mean of anything else, such as images.

    Args:
        output: what the forward returned.
        in_fp32: compute cross entropy in fp32, as autocast does.

    Raises:
        ModelError: if nothing in the output depends on a trainable parameter.
    """
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    found = [
        leaf
        for leaf in tree_leaves(_logits(output))
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point()
    ]
    if not found:
        raise ModelError(
            "the forward returned nothing that depends on a trainable parameter",
            hint="return a tensor, a tuple or dict of them, or an object with .loss",
        )
    scalar = next((leaf for leaf in found if leaf.ndim == 0), None)
    if scalar is not None:
        return scalar
    first = found[0]
    if first.ndim not in {2, 3}:
        return first.float().mean() if in_fp32 else first.mean()
    rows = (first.float() if in_fp32 else first).flatten(0, -2)
    targets = torch.zeros(rows.shape[0], dtype=torch.long)
    return functional.cross_entropy(rows, targets)


def _logits(output: Any) -> Any:
    """Return the ``logits`` of an output that names its parts, else all of it."""
    if isinstance(output, Mapping):
        return output.get("logits", list(output.values()))
    return output
