"""Ranks of cp and tp compute one sample's forward together: they must take, draw and return the same.

Other samples on each, as from a sampler over all ranks, or other draws, would be mixed in the first sum
over ranks, and what comes of it be trained without a word.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from parastrat.errors import MismatchError
from parastrat.runtime.communication.compared import DRIFT, differing, is_compared, spread, told
from parastrat.runtime.tensor_parallel.dropout import States
from parastrat.runtime.tensors.leaves import tensors_in
from parastrat.runtime.training.looked_at import LookedAt
from parastrat.runtime.wrapped import inner

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.wrapped import Wrapped

#: of a norm, by which what ranks return may differ: short formats keep three digits, in any order of sums
_ROUNDING = 1e-2


class Alike:
    """Compares the forwards 1, 2, 4, 8 and so on of a model over the ranks that compute one sample.

    Args:
        model: divided; all its forwards are run by all ranks of the group.
        wrapping: of it.
        mesh: of the ranks.
        passing: whose stages receive and send positions of a sample, if any do.
    """

    def __init__(
        self, model: nn.Module, wrapping: Wrapped, mesh: DeviceMesh, passing: Pipeline | None
    ) -> None:
        self._wrapping, self._mesh = wrapping, mesh
        self._passing = passing
        axes = [axis for axis in ("cp", "tp") if getattr(wrapping.plan.mesh, axis) > 1]
        group = f"{' and '.join(axes)} group"
        self._among = f"between the ranks of one {group}"
        numbers = axes[0] if len(axes) == 1 else f"({' * '.join(axes)})"
        self._hint = (
            f"give all ranks of a {group} the same samples, as parastrat.shard_dataloader does, and "
            f"the same seed; rank // {numbers} numbers those that see different ones"
        )
        self._looked_at = LookedAt(inner(model), wrapping)
        self._forwards = 0
        #: of each generator, as a forward began that is compared
        self._states: tuple[int, ...] = ()
        before: Any = torch.compiler.disable(self._began)  # type: ignore[no-untyped-call]
        after: Any = torch.compiler.disable(self._ended)  # type: ignore[no-untyped-call]
        model.register_forward_pre_hook(before, with_kwargs=True)
        model.register_forward_hook(after)

    def compare(self, what: str, tensors: list[torch.Tensor], tolerance: float = DRIFT) -> None:
        """Refuse that ranks hold other values; these may be of another number on each.

        Raises:
            MismatchError: they differ by more than a part of their norm.
        """
        if any(isinstance(tensor, DTensor) for tensor in tensors):
            return
        device = self._wrapping.device
        numbers = [told(tensor, device) for tensor in tensors] or [told(None, device)]
        # rows of one tensor: their own sums tell which is which
        if differing([("them", torch.stack(numbers).sum(0))], device, self._mesh.get_group(), tolerance):
            raise MismatchError(f"{what} differs {self._among}", hint=self._hint)

    def _began(self, _module: nn.Module, args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._forwards += 1
        if not is_compared(self._forwards):
            return
        self._looked_at.hooks()
        self._states = _drawn_from(self._wrapping.device)
        taken = tensors_in(self._given(args, keywords))
        # fractions behind the first may be caches of each rank's heads
        told = taken[:1] + [each for each in taken[1:] if not each.is_floating_point()]
        self.compare("what a forward takes", told)

    def _given(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Return what ranks of one sample are given alike: not what stages receive of its positions."""
        return (args, keywords) if self._passing is None else self._passing.job.batch(**keywords)

    def _ended(self, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        self._looked_at.attentions(output)
        states, self._states = self._states, ()
        if not states:
            return
        device = self._wrapping.device
        draws = [
            number
            for before, now in zip(states, _drawn_from(device), strict=True)
            for number in (float(before != now), float(before))
        ]
        found = spread(draws, device, self._mesh.get_group())
        for (_, some), (least, most) in zip(found[::2], found[1::2], strict=True):
            if some and least != most:
                raise MismatchError(
                    f"a forward draws random numbers, which differ {self._among}", hint=self._hint
                )
        # the first: what follows may be caches of each rank's heads
        leaves = tensors_in(output)[:1]
        passes_on = self._passing is not None and not self._passing.holds_last
        if leaves and not (self._wrapping.stepping or passes_on):  # whose logits may be divided
            self.compare("what a forward returns", leaves, _ROUNDING)


def _drawn_from(device: torch.device) -> tuple[int, ...]:
    """Return what tells the state of each generator: a rank may draw from its host's for itself."""
    now = States.now(device)
    states = [now.host] if now.own is None else [now.host, now.own.cpu()]
    return tuple(zlib.crc32(state.numpy().tobytes()) for state in states)
