"""Gradients of whole weights that see a share of the data: added up in backward, or in one message a step.

Norms between divided regions are such weights. A bare ``loss.backward()`` must leave whole gradients, so
that each use of a weight adds up its own; ``forward_backward`` knows when a step ends, and can wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from parastrat.runtime.precision import local_tensor
from parastrat.runtime.tensor_parallel.dtensors import own_values
from parastrat.runtime.tensor_parallel.flow import enter
from parastrat.runtime.training.messages import in_messages

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module holds a weight; FSDP2 puts its own in the place of what was there."""

    owner: nn.Module
    name: str

    @property
    def weight(self) -> nn.Parameter:
        """What the place holds now."""
        held = self.owner._parameters[self.name]  # noqa: SLF001  (the attribute is what a forward reads)
        return cast("nn.Parameter", held)


class Sums:
    """What one model adds up at the end of a step.

    Args:
        module: divided already, not yet sharded.
        places: of all weights that see a share of the data.
        mesh: the tensor-parallel ranks.
    """

    #: of the step that is running
    running: Sums | None = None

    def __init__(self, module: nn.Module, places: Iterable[Place], mesh: DeviceMesh) -> None:
        self._module, self._mesh = module, mesh
        owners = Counter(
            parameter for part in module.modules() for parameter in part.parameters(recurse=False)
        )
        # another owner of a tied weight may see all the data
        self._places = {place for place in places if owners[place.weight] == 1}

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Add up the gradients of the backwards inside, once behind them; earlier ones stay.

        Those of sharded weights are added up in shards.
        """
        earlier = {place: weight.grad for place, weight in self._weights()}
        for _, weight in self._weights():
            weight.grad = None
        Sums.running = self
        try:
            yield
        finally:
            Sums.running = None
        weights = self._weights()
        new = [local_tensor(weight.grad) for _, weight in weights if weight.grad is not None]
        in_messages(new, lambda message: dist.all_reduce(message, group=self._mesh.get_group()))
        for place, weight in weights:
            before = earlier[place]
            if before is not None:
                weight.grad = before if weight.grad is None else before.add_(weight.grad)

    def waits_for(self, place: Place) -> bool:
        """Return whether a weight's gradient is added up at the end of the step."""
        return place in self._places

    def _weights(self) -> list[tuple[Place, nn.Parameter]]:
        """Return the weights as optimizers know them, in an order that all ranks have."""
        for part in self._module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()  # an evaluation leaves the last unit gathered
        order = {part: index for index, part in enumerate(self._module.modules())}
        places = sorted(self._places, key=lambda place: (order[place.owner], place.name))
        return [(place, place.weight) for place in places]


def entered(place: Place, mesh: DeviceMesh) -> torch.Tensor:
    """Return a whole weight's values for a share of the data."""
    weight = place.weight
    local = own_values(weight) if isinstance(weight, DTensor) else weight
    trained = weight.requires_grad and torch.is_grad_enabled()
    if trained and Sums.running is not None and Sums.running.waits_for(place):
        return local
    return enter(local, mesh)
