"""Gradients of whole weights that see a share of the data: added up in backward, or in one message a step.

Norms between divided regions are such weights. A bare ``loss.backward()`` must leave whole gradients, so
that each use of a weight adds up its own; ``forward_backward`` knows when a step ends, and can wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from parastrat.runtime.messages import in_messages
from parastrat.runtime.precision import local_tensor
from parastrat.runtime.tensor_parallel.flow import enter

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Sums:
    """What one model adds up at the end of a step.

    Args:
        module: divided already.
        mesh: the tensor-parallel ranks.
    """

    #: of the step that is running
    running: Sums | None = None

    def __init__(self, module: nn.Module, mesh: DeviceMesh) -> None:
        self._mesh = mesh
        owners = Counter(
            parameter for part in module.modules() for parameter in part.parameters(recurse=False)
        )
        # another owner of a tied weight may see all the data
        self._at_once: set[torch.Tensor] = {parameter for parameter, count in owners.items() if count > 1}
        self._waiting: dict[torch.Tensor, torch.Tensor | None] = {}

    @contextmanager
    def at_the_end(self) -> Iterator[None]:
        """Add up the gradients of the backwards inside, once behind them; earlier ones stay."""
        Sums.running = self
        try:
            yield
        finally:
            Sums.running = None
            waiting, self._waiting = self._waiting, {}
        new = [local_tensor(parameter.grad) for parameter in waiting if parameter.grad is not None]
        in_messages(new, lambda message: dist.all_reduce(message, group=self._mesh.get_group()))
        for parameter, before in waiting.items():
            if before is not None:
                parameter.grad = before if parameter.grad is None else before.add_(parameter.grad)

    def waits_for(self, parameter: torch.Tensor) -> bool:
        """Note a weight that is used; return whether its gradient is added up at the end of the step."""
        if parameter in self._at_once:
            return False
        if parameter not in self._waiting:
            self._waiting[parameter], parameter.grad = parameter.grad, None
        return True


def entered(parameter: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """Return a whole weight's values for a share of the data."""
    local = local_tensor(parameter)
    trained = parameter.requires_grad and torch.is_grad_enabled()
    if trained and Sums.running is not None and Sums.running.waits_for(parameter):
        return local
    return enter(local, mesh)
