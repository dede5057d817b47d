"""Loss parallelism on fake tensors, which cannot be of the class that logits are of otherwise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from parastrat.runtime.tensor_parallel import styles
from parastrat.runtime.tensor_parallel.cross_entropy import cross_entropies
from parastrat.runtime.training import step
from parastrat.runtime.training.batches import IGNORED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.tensor_parallel.layout import Layout
    from parastrat.runtime.wrapping import Wrapping


#: models put the rows of all samples together
_SHAPED = (torch.Tensor.view, torch.Tensor.reshape)


@contextmanager
def losses_of_shares(layout: Layout | None) -> Iterator[None]:
    """Let heads hand out plain shares where the layout divides logits, and cross entropy take them."""
    if layout is None or not layout.loss:
        yield
        return
    mode = _OfShares()
    with patch.object(styles, "logits", mode.handed_out), mode:
        yield


@contextmanager
def losses_of_scripts() -> Iterator[None]:
    """Let ``forward_backward`` compute losses so, for whatever model it is called with."""
    dividing = step.dividing_logits

    @contextmanager
    def of_shares(wrapping: Wrapping) -> Iterator[None]:
        with losses_of_shares(wrapping.layout), dividing(wrapping):
            yield

    with patch.object(step, "dividing_logits", of_shares):
        yield


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
