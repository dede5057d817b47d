"""Where a script's optimizer steps begin and end, and what lived in each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from parastrat.dry_run import Traffic
from parastrat.runtime.tensors.shares import share_of

if TYPE_CHECKING:
    from parastrat.runtime.dry_run.watch import Watch


class Ended(BaseException):
    """The step that was asked for has ended: scripts that catch exceptions let this one pass."""


class Steps:
    """Follows a script from optimizer step to optimizer step.

    A step ends where the first optimizer's does; the second is the first one in whose backward there are
    optimizer states.

    Args:
        watch: of the script's tensors.
        wanted: how many steps there are to be.
    """

    def __init__(self, watch: Watch, wanted: int) -> None:
        self._watch, self._wanted = watch, wanted
        self._first: object = None
        self._modules: dict[nn.Module, None] = {}
        self._backwards, self._after_forward = 0, 0
        self._forward_backward, self._optimizer_step = 0, 0
        #: how many steps have ended
        self.count = 0
        #: of the last step that ended
        self.last: dict[str, int | None] = {}
        self.traffic: tuple[Traffic, ...] = ()

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Hear of every optimizer step, backward and module of this process."""
        with ExitStack() as stack:
            for handle in (
                register_optimizer_step_pre_hook(self._begins),
                register_optimizer_step_post_hook(self._ends),
                register_module_forward_pre_hook(self._runs),
            ):
                stack.callback(handle.remove)

            def seen(loss: torch.Tensor, gradient: Any = None, *flags: Any, **keywords: Any) -> None:
                self._backwards += 1
                self._after_forward = self._watch.live
                # not by the method: modes of functions are off while it runs, and so in all of backward
                torch.autograd.backward(loss, gradient, *flags, **keywords)

            stack.enter_context(patch.object(torch.Tensor, "backward", seen))
            yield

    def _runs(self, module: nn.Module, _args: Any) -> None:
        self._modules[module] = None

    def _begins(self, optimizer: object, _args: Any, _keywords: Any) -> None:
        if self._first is None:
            self._first = optimizer
        self._forward_backward = max(self._forward_backward, self._watch.peak)
        self._watch.peak = self._watch.live

    def _ends(self, optimizer: object, _args: Any, _keywords: Any) -> None:
        self._optimizer_step = max(self._optimizer_step, self._watch.peak)
        self._watch.peak = self._watch.live
        if optimizer is not self._first:
            return
        self.count += 1
        self.last = {
            "micro_batches": max(self._backwards, 1),
            "parameters": self._parameters(),
            "after_forward": self._after_forward or None,
            "forward_backward": self._forward_backward,
            "optimizer_step": self._optimizer_step,
        }
        self.traffic = self._watch.traffic
        self._watch.forget_traffic()
        self._backwards = self._after_forward = self._forward_backward = self._optimizer_step = 0
        if self.count == self._wanted:
            raise Ended

    def _parameters(self) -> int:
        """Return the bytes of what the modules that ran hold, shares of it where it is sharded."""
        held: dict[int, int] = {}
        for module in self._modules:
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                own = share_of(tensor)
                if isinstance(own, FakeTensor):
                    storage = own.untyped_storage()
                    held[storage._cdata] = storage.nbytes()  # noqa: SLF001  (the address; no accessor)
        return sum(held.values())
