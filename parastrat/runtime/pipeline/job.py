"""What the stages work on in one step: its micro-batches, and the shapes of what they send."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from parastrat.runtime.pipeline.border import Parcel
from parastrat.runtime.pipeline.route import Route, TensorShape
from parastrat.runtime.pipeline.schedule import Ends

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.cut import Span

#: the weighted loss of one micro-batch, by its index and the model's output
LossOf = Callable[[int, Any], Any]

#: what the schedule hands the first stage in the place of a batch
_INDEX = TensorShape(shape=torch.Size((1,)), dtype=torch.int64, requires_grad=False)
_LOSS = TensorShape(shape=torch.Size(()), dtype=torch.float32, requires_grad=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the stages work on in one step."""

    batches: list[Any]
    routes: list[Route]
    loss_of: LossOf
    #: what stages of this rank failed with while they kept step; None: they raise it
    failures: list[Exception] | None = None

    def parcel(self, after: int) -> Parcel:
        """Return how tensors travel over a cut."""
        crossing = self.routes[0].crossing(after)
        return Parcel([[route.shape_of(source) for source in crossing] for route in self.routes])

    def ends(self, span: Span) -> Ends:
        """Return what a stage gets and gives."""
        return Ends(
            entering=tuple(self.parcel(span.begin).shapes) if span.stage else (_INDEX,),
            leaving=(_LOSS,) if span.is_last else tuple(self.parcel(span.end).shapes),
        )

    def batch(self, micro_batch: torch.Tensor) -> Any:
        """Return what the script gave as a micro-batch."""
        return self.batches[index_of(micro_batch)]


def index_of(micro_batch: torch.Tensor) -> int:
    """Return the index of a micro-batch, which schedules hand on as a tensor of one element."""
    return int(micro_batch)
