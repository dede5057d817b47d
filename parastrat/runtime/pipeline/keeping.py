"""A stage that fails keeps step: the others get zeros, and learn why once the schedule has run.

They would wait for it otherwise, for as long as its process is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from parastrat.errors import MismatchError, ParastratError
from parastrat.runtime.communication.told import innermost, stopped_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.runtime.pipeline.route import TensorShape


def stand_in(shapes: Sequence[TensorShape], received: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return zeros of these shapes, of which everything that was received gets gradients of zeros.

    Args:
        shapes: what the stage would have given.
        received: what it got; the first stage gets indices.
    """
    nothing = torch.zeros((), device=received[0].device, requires_grad=True)
    for tensor in received:
        if tensor.requires_grad:
            nothing = nothing + (tensor.float() * 0).sum()
    outputs = []
    for shape in shapes:
        zeros = torch.zeros(shape.shape, dtype=shape.dtype, device=nothing.device)
        outputs.append(zeros + nothing.to(shape.dtype) * 0 if shape.requires_grad else zeros)
    return tuple(outputs)


def raise_together(own: Exception | None, loss: torch.Tensor) -> None:
    """Raise if a stage of any rank failed; all ranks of the job call it, behind their schedules.

    Args:
        own: what this rank's failed with.
        loss: the sum over all ranks, to which those that failed added what is not a number: where it is
            one, nobody is asked.

    Raises:
        Exception: this rank's own.
        MismatchError: on the other ranks, naming the first that failed, and with what; also from what
            torch raised here, where a rank refused what it would have sent.
    """
    if not is_lost(loss):
        return
    refused = isinstance(own, ParastratError)
    every: list[tuple[str, bool]] = [("", False)] * dist.get_world_size()
    dist.all_gather_object(every, ("" if own is None else stopped_with(innermost(own)), refused))
    refusals = [said for said, refused in every if refused]
    # from what was refused stand-ins go on
    if own is not None and (refused or not refusals):
        raise own
    said = next((said for said in (*refusals, *(said for said, _ in every)) if said), "")
    if said:
        raise MismatchError(said, hint="see the output of that rank") from own


def is_lost(loss: torch.Tensor) -> bool:
    """Return whether a loss is not a number."""
    return bool(loss.isnan())
