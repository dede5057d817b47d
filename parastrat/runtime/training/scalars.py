"""Parameters without a dimension, which FSDP2 does not take: whole on every rank, their gradients averaged.

All of a model's travel in one message a step; where there are none, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.autograd import Variable

from parastrat.runtime.communication.messages import in_messages
from parastrat.runtime.tensors.leaves import tensors_in

if TYPE_CHECKING:
    from parastrat.runtime.communication.mesh import RankMesh
    from parastrat.runtime.wrapped import Wrapped

Gradients = dict[nn.Parameter, torch.Tensor | None]


def scalars_in(module: nn.Module) -> set[nn.Parameter]:
    """Return a module's parameters without a dimension."""
    return {parameter for parameter in module.parameters() if parameter.dim() == 0}


class Scalars:
    """Averages what FSDP2 leaves alone.

    Args:
        mesh: of all ranks.
    """

    def __init__(self, mesh: RankMesh) -> None:
        self._mesh = mesh
        #: owners and keys: first weights and checkpoints may put others in their place
        self._places: list[tuple[nn.Module, str]] = []
        #: a backward is running, of which ``_average`` will hear
        self._running = False

    def add(self, module: nn.Module) -> None:
        """See to one module's, too."""
        for part in module.modules():
            for key, parameter in part.named_parameters(recurse=False):
                if parameter.dim() == 0:
                    self._places.append((part, key))

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Average the gradients of the backwards inside, once behind them; earlier ones stay."""
        earlier = self._take()
        yield
        self._average(earlier)

    def follow(self, module: nn.Module, wrapping: Wrapped) -> None:
        """Do as much for each backward outside of ``forward_backward``."""

        def after(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            if wrapping.stepping or not torch.is_grad_enabled():
                return
            for leaf in tensors_in(output):
                if leaf.requires_grad:
                    leaf.register_hook(self._began)  # type: ignore[no-untyped-call]

        module.register_forward_hook(after)

    def _began(self, _gradient: torch.Tensor) -> None:
        if self._running:
            return
        self._running = True
        earlier = self._take()

        def ended() -> None:
            self._running = False
            self._average(earlier)

        Variable._execution_engine.queue_callback(ended)  # noqa: SLF001  (as torch's own wrappers)

    def _take(self) -> Gradients:
        """Take the gradients that are there off the parameters, each once."""
        held = [owner._parameters[key] for owner, key in self._places]  # noqa: SLF001  (as elsewhere)
        earlier: Gradients = {each: each.grad for each in held if each is not None and each.requires_grad}
        for parameter in earlier:
            parameter.grad = None
        return earlier

    def _average(self, earlier: Gradients) -> None:
        """Average new gradients, those of ranks without as zeros; none where no rank has one."""
        if not earlier:
            return
        ranks = self._mesh.data.size() if self._mesh.data is not None else 1
        own = [parameter.grad is not None for parameter in earlier]
        used = torch.tensor(own, dtype=torch.float32, device=next(iter(earlier)).device)
        new = [torch.zeros_like(p.data) if p.grad is None else p.grad.detach() / ranks for p in earlier]
        in_messages([used, *new], self._mesh.sum_over_copies)
        # where all have one here, nothing is waited for
        on_any = own if all(own) else used.bool().tolist()
        for (parameter, before), gradient, some in zip(earlier.items(), new, on_any, strict=True):
            parameter.grad = before if not some else gradient if before is None else before + gradient
