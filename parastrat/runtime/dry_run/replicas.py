"""DistributedDataParallel on fake tensors, whose reducer is C++ and reads some tensors' values."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch._subclasses.fake_tensor import FakeTensorMode

    from parastrat.runtime.dry_run.watch import Watch


@contextmanager
def replicas_on_fakes(mode: FakeTensorMode, watch: Watch) -> Iterator[None]:
    """Let DDP be wrapped and run on fake tensors, its buckets watched, as with real ones.

    Not as with real ones: nothing is compared or sent at the beginning; and a hook sends the buckets,
    because the fake group's own work has no result, which the reducer asks for.
    """
    reducers: Any = vars(dist)["Reducer"]  # exported without its type
    rebuild: Callable[[Any], bool] = reducers._rebuild_buckets  # noqa: SLF001  (DDP's own)

    def rebuilt(reducer: Any) -> bool:
        # once in a training, it agrees with the other ranks on the order of gradients, which are numbers
        with _disable_current_modes(), _OnlyFloatsAreFake(mode, watch):
            return rebuild(reducer)

    with replicas_alone(mode, watch), patch.object(reducers, "_rebuild_buckets", rebuilt):
        yield


@contextmanager
def replicas_alone(*modes: TorchDispatchMode) -> Iterator[None]:
    """Let DDP be wrapped among ranks that are not there, in these modes."""
    begin = DistributedDataParallel.__init__

    def begun(wrapped: DistributedDataParallel, module: nn.Module, *_: Any, **keywords: Any) -> None:
        # without device ids, which fake tensors on the host have none of, modules stay where they are
        alone = {"device_ids": None, "output_device": None, "init_sync": False}
        with ExitStack() as stack:
            for mode in modes:
                stack.enter_context(mode)
            begin(wrapped, module, **keywords | alone)
        wrapped.register_comm_hook(wrapped.process_group, _sent)

    with patch.object(DistributedDataParallel, "__init__", begun):
        yield


class _OnlyFloatsAreFake(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Makes new tensors of a floating-point format fake and lets them be watched; others are real."""

    def __init__(self, mode: FakeTensorMode, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._mode, self._watch = mode, watch

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = kwargs or {}
        dtype = keywords.get("dtype")
        if dtype is None or not dtype.is_floating_point:
            return func(*args, **keywords)
        with self._mode:
            result = func(*args, **keywords)
        self._watch.hold(result)
        return result


def _sent(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    buffer: torch.Tensor = bucket.buffer()
    dist.all_reduce(buffer, group=group)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(buffer)
    return done


# torch reads a hook's annotations, and takes none that are text
_sent.__annotations__.clear()
