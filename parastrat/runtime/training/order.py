"""Ranks gather the same weights one after the other, or they are given parts of each other's.

FSDP2 gathers a unit as its forward begins, and no message says which one. Where ranks take other ways
through a model, as one draws which layers it leaves out, parts of one layer are put together with those of
another: without a word where these are as large, for ever waiting where they are not. What decides the way
may be anywhere, in ``random``'s state as in a sampler's. So the ranks say which unit they have come to, in
their forwards 1, 2, 4, 8 and so on, with and without gradients.
"""

from __future__ import annotations

import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from parastrat.errors import MismatchError
from parastrat.runtime.backward import in_backward
from parastrat.runtime.communication import messages
from parastrat.runtime.communication.compared import is_compared
from parastrat.runtime.communication.gloo import group_apart
from parastrat.runtime.training.writes import apart

if TYPE_CHECKING:
    from torch import nn

    from parastrat.runtime.wrapped import Wrapped

#: for ranks that have not come: NCCL's own, which would end the job there
WAIT = timedelta(minutes=10)


class Order:
    """Compares which units the ranks gather, before they do.

    Args:
        root: sharded by FSDP2; its forwards are run by all ranks.
        wrapping: of it, sharded over several ranks.
    """

    def __init__(self, root: nn.Module, wrapping: Wrapped) -> None:
        self._kind = type(root).__name__.removeprefix("FSDP")
        self._gathering = wrapping.mesh.gradient_group
        self._group: dist.ProcessGroup | None = None
        #: forwards without gradients, and with them
        self._forwards = [0, 0]
        self._is_compared = False
        # before FSDP2 gathers; its own hooks are not compiled either
        root.register_forward_pre_hook(apart(self._began), prepend=True)
        root.register_forward_hook(apart(self._ended), always_call=True)
        # FSDP2's class is mixed into that of a module, and mypy takes it for all there is
        units: dict[str, Any] = {name: part for name, part in root.named_modules() if _is_unit(part)}
        for name, unit in units.items():
            if unit is not root:
                unit.register_forward_pre_hook(apart(self._came_to(name)), prepend=True)

    def _began(self, _root: nn.Module, _args: tuple[Any, ...]) -> None:
        if in_backward():
            return  # recomputed
        with_gradients = torch.is_grad_enabled()
        self._forwards[with_gradients] += 1
        self._is_compared = is_compared(self._forwards[with_gradients])
        self._meet("the beginning")

    def _came_to(self, name: str) -> Any:
        def came(_unit: nn.Module, _args: tuple[Any, ...]) -> None:
            if not in_backward():
                self._meet(name)

        return came

    def _ended(self, _root: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        if in_backward():
            return
        if output is not None:  # it raised, and says so itself
            self._meet("the end")
        self._is_compared = False

    def _meet(self, place: str) -> None:
        """Refuse that ranks have come to other places.

        Raises:
            MismatchError: naming that of this rank.
        """
        if not self._is_compared:
            return
        with_gradients = torch.is_grad_enabled()
        kind = "with" if with_gradients else "without"
        place = f"{place} of a forward {kind} gradients, number {self._forwards[with_gradients]}"
        try:
            codes = messages.one_each(zlib.crc32(place.encode()), torch.device("cpu"), self._group_apart())
        except RuntimeError as error:
            raise MismatchError(
                f"rank {dist.get_rank()} came to {place}, where FSDP2 gathers weights from all ranks, and "
                f"others did not: {(str(error).splitlines() or [''])[0]}",
                hint="run as many forwards on all ranks, of evaluations too, as parastrat.evaluate and "
                "parastrat.shard_dataloader do, or plan ddp: parastrat recommend --strategy ddp",
            ) from error
        if len(set(codes)) > 1:
            raise MismatchError(
                f"the ranks take other ways through {self._kind}: this one came to {place}, and others to "
                "another, where FSDP2 gathers weights from all: parts of several would be put together",
                hint="draw what a forward branches on alike on all ranks (seed random, numpy and torch "
                "without the rank) and run evaluations on all, or plan ddp: parastrat recommend "
                "--strategy ddp",
            )

    def _group_apart(self) -> dist.ProcessGroup:
        if self._group is None:
            self._group = group_apart(dist.get_process_group_ranks(self._gathering), WAIT)
        return self._group


def gather_alike(model: nn.Module, wrapping: Wrapped) -> None:
    """Compare which weights a model's ranks gather; stages of a pipeline were proven to."""
    if wrapping.plan.shards_parameters and wrapping.mesh.pp is None:
        Order(model, wrapping)


def _is_unit(part: nn.Module) -> bool:
    return isinstance(part, FSDPModule)
