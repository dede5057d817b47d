"""Divided logits on fake tensors, which cannot be of the class that logits are of otherwise."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from parastrat.runtime.context_parallel import stream
from parastrat.runtime.context_parallel.positions import summed
from parastrat.runtime.tensor_parallel import styles
from parastrat.runtime.tensor_parallel.cross_entropy import cross_entropies
from parastrat.runtime.tensors.batches import IGNORED
from parastrat.runtime.training import step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.context_parallel.positions import Positions
    from parastrat.runtime.wrapping import Wrapping


#: models put the rows of all samples together
_SHAPED = (torch.Tensor.view, torch.Tensor.reshape)


@contextmanager
def losses_of_shares(wrapping: Wrapping) -> Iterator[None]:
    """Let heads hand out plain shares where logits are divided, and cross entropy take them."""
    with ExitStack() as stack:
        if wrapping.layout is not None and wrapping.layout.loss:
            by_columns = stack.enter_context(_OfShares())
            stack.enter_context(patch.object(styles, "by_vocabulary", by_columns.handed_out))
        if wrapping.division is not None and wrapping.division.loss:  # asked first, for its own rows alone
            by_rows = stack.enter_context(_OfRows())
            stack.enter_context(patch.object(stream, "by_positions", by_rows.handed_out))
        yield


@contextmanager
def losses_of_scripts() -> Iterator[None]:
    """Let ``forward_backward`` compute losses so, for whatever model it is called with."""
    dividing = step.dividing_logits

    @contextmanager
    def of_shares(wrapping: Wrapping) -> Iterator[None]:
        with losses_of_shares(wrapping), dividing(wrapping):
            yield

    with patch.object(step, "dividing_logits", of_shares):
        yield


class _OfRows(TorchFunctionMode):
    """Computes the cross entropy of a rank's positions together with the other ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._positions: Positions | None = None

    def handed_out(self, own: torch.Tensor, positions: Positions) -> torch.Tensor:
        """Return a head's share, whose positions are known from here on."""
        self._positions = positions
        return own

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not functional.cross_entropy or self._positions is None:
            return func(*args, **(kwargs or {}))
        own, targets = args[:2]
        whole = targets.shape[0] == own.shape[0] * self._positions.ranks
        mean = func(own, targets[: own.shape[0]] if whole else targets, *args[2:], **(kwargs or {}))
        return summed(mean, self._positions)


class _OfShares(TorchFunctionMode):
    """Computes the cross entropy of a share together with the other ranks."""

    def __init__(self) -> None:
        super().__init__()
        #: by a share's columns
        self._meshes: dict[int, DeviceMesh] = {}

    def handed_out(self, own: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """Return a head's share, known from here on."""
        self._meshes[own.shape[-1]] = mesh
        return own

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        own = args[0] if args and isinstance(args[0], torch.Tensor) and args[0].ndim else None
        mesh = None if own is None else self._meshes.get(own.shape[-1])
        if own is None or mesh is None:
            return func(*args, **(kwargs or {}))
        if func is functional.cross_entropy:
            targets = args[1]
            return cross_entropies(own, targets, IGNORED, mesh).sum() / (targets != IGNORED).sum()
        if func in _SHAPED:
            return func(own, *_of_share(args[1:], own.shape[-1], mesh.size()))
        return func(*args, **(kwargs or {}))


def _of_share(sizes: tuple[Any, ...], columns: int, ranks: int) -> tuple[Any, ...]:
    """Return the sizes that models ask for, where these are the whole's."""
    asked = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    return (*asked[:-1], columns) if asked[-1] == columns * ranks else asked
