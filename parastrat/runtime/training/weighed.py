"""How much a target weighs in a cross entropy that a script computes, read off the gradients of logits.

Where a loss is the mean over a rank's own targets, and ranks have other numbers of them, as with prompts
that are ignored, a plain loop weighs the targets of one rank more than those of another. How many there are
is not told: the loss is made behind the model. But the gradient of a row of logits is its target's weight
times their softmax, less one at the target's place, whatever divides the loss.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from parastrat.runtime.tensors.leaves import tensors_in

#: that are looked at of a forward's logits: most of a prompt may be ignored
_ROWS = 32
#: of a row's gradient, by which it may be another than of a cross entropy: short formats keep three digits
_ROUNDING = 0.03
#: of the greatest, by which a rank's own targets may weigh less: classes may have weights
_ALIKE = 0.02
#: probability of all but the target, below which its gradient is rounded off
_LEARNT = 1e-3


class Weighed:
    """Notes a few rows of what a model returns, and what a backward says of them."""

    def __init__(self) -> None:
        self._weight: float | None = None

    def note(self, output: Any) -> None:
        """Look at what a forward returned as its gradients come."""
        logits = next((each for each in tensors_in(output) if _may_be_logits(each)), None)
        if logits is None:
            return
        many = logits.numel() // logits.shape[-1]
        few = min(many, _ROWS)
        places = torch.unravel_index(torch.arange(few) * many // few, logits.shape[:-1])
        rows = logits.detach()[places]

        def came(gradient: torch.Tensor | None) -> None:
            # a compiled forward that returns its loss as well has no gradient of the logits behind it
            if gradient is not None:
                self._weight = weight_of(rows, gradient.detach()[places])

        logits.register_hook(came)  # type: ignore[no-untyped-call]

    def taken(self) -> float | None:
        """Return what a target weighed in the last backward, and forget it; None where it was not seen."""
        weight, self._weight = self._weight, None
        return weight


def _may_be_logits(tensor: torch.Tensor) -> bool:
    is_whole = not isinstance(tensor, DTensor) and tensor.layout is torch.strided
    shaped = tensor.ndim > 1 and tensor.shape[-1] > 1 and tensor.numel() > 0
    return is_whole and shaped and tensor.requires_grad and tensor.is_floating_point()


def weight_of(logits: torch.Tensor, gradients: torch.Tensor) -> float | None:
    """Return the weight of each target in a cross entropy, by which its gradients are larger.

    Args:
        logits: rows of classes.
        gradients: of the loss by these; rows of zeros are those of no target.

    Returns:
        None where there is no target, targets weigh otherwise among themselves, or it is another loss.
    """
    has = gradients.ne(0).any(dim=-1)
    own, found = logits[has].float(), gradients[has].float()
    expected = own.softmax(dim=-1)
    expected.scatter_add_(1, found.argmin(dim=-1, keepdim=True), torch.full_like(expected[:, :1], -1))
    lengths = expected.square().sum(dim=-1)
    weights = (found * expected).sum(dim=-1) / lengths
    apart = (found - weights[:, None] * expected).norm(dim=-1) / found.norm(dim=-1)
    told = [
        (weight, off)
        for weight, off, length in torch.stack([weights, apart, lengths]).T.tolist()
        if length > _LEARNT**2
    ]
    if not told or any(not off < _ROUNDING for _, off in told):
        return None
    least, most = min(weight for weight, _ in told), max(weight for weight, _ in told)
    return most if 0 < (1 - _ALIKE) * most <= least else None
