"""An optimizer of a rank that is dry-run: on its own shares, and with its states from the beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.runtime.tensors.shares import share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn


class OnShares:
    """An optimizer that is given what a rank holds of each parameter, and the gradient's share of that.

    On DTensors it would run the same kernels on the same bytes; but torch asks for each of them, over lists
    of all parameters, how every one may be divided, which takes as long as forward and backward.

    Args:
        make: the optimizer of these tensors.
        parameters: of the wrapped model.
    """

    def __init__(
        self,
        make: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer],
        parameters: Iterable[nn.Parameter],
    ) -> None:
        self._pairs = [(parameter, share_of(parameter).detach()) for parameter in parameters]
        self._optimizer = make([share for _, share in self._pairs])

    def _step(self) -> None:
        with _AnyNumber():  # type: ignore[no-untyped-call]
            self._optimizer.step()
        self._optimizer.zero_grad()

    def make_states(self) -> None:
        """Make the states of all parameters that are trained, as a step before would have."""
        for parameter, share in self._pairs:
            share.grad = torch.empty_like(share) if parameter.requires_grad else None
        self._step()

    def forget_unused(self) -> bool:
        """Forget the states of parameters that have no gradient now; return whether there were any."""
        idle = [share for parameter, share in self._pairs if parameter.grad is None]
        forgotten = [self._optimizer.state.pop(share) for share in idle if share in self._optimizer.state]
        return bool(forgotten)

    def step(self) -> None:
        """Step, and free the gradients."""
        for parameter, share in self._pairs:
            share.grad = _gradient(parameter)
        self._step()
        for parameter, _ in self._pairs:
            parameter.grad = None


class _AnyNumber(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Tells 1 for a number that is read of a fake tensor: norms of weights scale Adafactor's steps."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        reads = func is torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (torch's name)
        if reads and isinstance(args[0], FakeTensor) and args[0].constant is None:
            return 1.0
        return func(*args, **(kwargs or {}))


def _gradient(parameter: nn.Parameter) -> torch.Tensor | None:
    """Return the gradient's share, divided as the parameter is, for which torch sends what it has to."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
        return share_of(gradient.redistribute(parameter.device_mesh, parameter.placements))
    return gradient
