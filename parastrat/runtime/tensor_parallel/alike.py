"""Ranks of one tp group compute one forward together: they must take, draw and return the same.

Other samples on each, as from a sampler over all ranks, or other draws, would be mixed in the first sum
over ranks, and what comes of it be trained without a word.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from parastrat.errors import MismatchError
from parastrat.runtime.leaves import tensors_in
from parastrat.runtime.tensor_parallel.dropout import States
from parastrat.runtime.training.compared import DRIFT, differing, is_compared, spread, told

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapping import Wrapping

#: of a norm, by which what ranks return may differ: short formats keep three digits, in any order of sums
_ROUNDING = 1e-2
_HINT = (
    "give all ranks of a tp group the same samples, as parastrat.shard_dataloader does, and the same seed; "
    "rank // tp numbers those that see different ones"
)


class Alike:
    """Compares the forwards 1, 2, 4, 8 and so on of a model over the ranks of its tp group.

    Args:
        model: divided; all its forwards are run by all ranks of the group.
        wrapping: of it.
    """

    def __init__(self, model: nn.Module, wrapping: Wrapping) -> None:
        self._wrapping = wrapping
        self._forwards = 0
        #: of the generators, as a forward began that is compared
        self._state: int | None = None
        before: Any = torch.compiler.disable(self._began)  # type: ignore[no-untyped-call]
        after: Any = torch.compiler.disable(self._ended)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(before, with_kwargs=True)
        model.register_forward_hook(after)

    def compare(self, what: str, tensors: list[torch.Tensor], tolerance: float = DRIFT) -> None:
        """Refuse that ranks hold other values; these may be of another number on each.

        Raises:
            MismatchError: they differ by more than a part of their norm.
        """
        mesh = self._wrapping.mesh.tp
        if mesh is None or any(isinstance(tensor, DTensor) for tensor in tensors):
            return
        device = self._wrapping.device
        numbers = [told(tensor, device) for tensor in tensors] or [told(None, device)]
        # rows of one tensor: their own sums tell which is which
        if differing([("them", torch.stack(numbers).sum(0))], device, mesh.get_group(), tolerance):
            raise MismatchError(f"{what} differs between the ranks of one tp group", hint=_HINT)

    def _began(self, _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._forwards += 1
        if not is_compared(self._forwards):
            return
        self._state = _drawn_from(self._wrapping.device)
        self.compare("what a forward takes", tensors_in((args, keywords)))

    def _ended(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        state, self._state = self._state, None
        mesh = self._wrapping.mesh.tp
        if state is None or mesh is None:
            return
        draws = float(state != _drawn_from(self._wrapping.device))
        told_of = spread([draws, float(state)], self._wrapping.device, mesh.get_group())
        (_, some), (least, most) = told_of
        if some and least != most:
            raise MismatchError(
                "a forward draws random numbers, which differ between the ranks of one tp group", hint=_HINT
            )
        # the first: what follows may be caches of each rank's heads
        leaves = tensors_in(output)[:1]
        if leaves and not self._wrapping.stepping:  # whose logits may be divided
            self.compare("what a forward returns", leaves, _ROUNDING)


def _drawn_from(device: torch.device) -> int:
    """Return what tells the state of the generators."""
    now = States.now(device)
    own = b"" if now.own is None else now.own.cpu().numpy().tobytes()
    return zlib.crc32(now.host.numpy().tobytes() + own)
