"""Gradients of whole weights that see a share of the data: added up in backward, or in one message a step.

Norms between divided regions are such weights. A bare ``loss.backward()`` must leave whole gradients, so
that each use of a weight adds up its own; ``forward_backward`` knows when a step ends, and can wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from parastrat.runtime.communication.flow import enter, ranks_of
from parastrat.runtime.communication.messages import in_messages
from parastrat.runtime.tensor_parallel.own_values import own_values
from parastrat.runtime.tensors.shares import share_of

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
        #: in the order in which the layout was applied, which all ranks have; another owner of a tied
        #: weight may see all the data
        self._places = tuple(dict.fromkeys(place for place in places if owners[place.weight] == 1))
        self._waiting = frozenset(self._places)

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Add up the gradients of the backwards inside, once behind them; earlier ones stay.

        Those of sharded weights are added up in shards.
        """
        self._reshard()
        earlier = [place.weight.grad for place in self._places]
        for place in self._places:
            place.weight.grad = None
        Sums.running = self
        try:
            yield
        finally:
            Sums.running = None
        self._reshard()
        weights = [place.weight for place in self._places]
        new = [share_of(weight.grad) for weight in weights if weight.grad is not None]
        in_messages(new, lambda message: dist.all_reduce(message, group=ranks_of(self._mesh).group))
        for before, weight in zip(earlier, weights, strict=True):
            if before is not None:
                weight.grad = before if weight.grad is None else before.add_(weight.grad)

    def waits_for(self, place: Place) -> bool:
        """Return whether a weight's gradient is added up at the end of the step."""
        return place in self._waiting

    @cached_property
    def _units(self) -> list[FSDPModule]:
        """FSDP2's, which it makes after the model is divided."""
        return [part for part in self._module.modules() if isinstance(part, FSDPModule)]

    def _reshard(self) -> None:
        """Let places hold weights as optimizers know them: an evaluation leaves the last unit gathered."""
        for unit in self._units:
            unit.reshard()


def entered(place: Place, mesh: DeviceMesh) -> torch.Tensor:
    """Return a whole weight's values for a share of the data."""
    weight = place.weight
    local = own_values(weight) if isinstance(weight, DTensor) else weight
    trained = weight.requires_grad and torch.is_grad_enabled()
    if trained and Sums.running is not None and Sums.running.waits_for(place):
        return local
    return enter(local, mesh)
