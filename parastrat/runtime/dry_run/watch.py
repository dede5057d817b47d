"""What lives and what is sent while a step runs, seen where torch dispatches operators."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parastrat.dry_run import Traffic
from parastrat.runtime.tensors.shares import share_of
from parastrat.runtime.tracing.fake_mode import asked, is_question

_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001  (operators have no public names)
#: DTensors' way to know the shape of an operator's result
_PROPAGATES = "_propagate_tensor_meta_non_cached"
_COLLECTIVES = ("c10d", "_c10d_functional")
#: messages that carry nothing of a model
_SILENT = ("barrier", "wait_tensor", "wrap_tensor_autograd", "monitored_barrier_")


class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes of storages from the operator that makes them to their end, and collectives.

    Args:
        kind: of the tensors that are counted, where others are beside them.
    """

    def __init__(self, kind: type[torch.Tensor] = torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self._kind = kind
        self.live = 0
        #: most that lived since it was last set to ``live``
        self.peak = 0
        self._bytes: dict[int, int] = {}
        self._watches: dict[int, weakref.ref[Any]] = {}
        self._aside = False
        self._sent: Counter[tuple[str, int]] = Counter()
        self._sent_bytes: Counter[tuple[str, int]] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing is compiled here; the guard against it takes a tenth of a dry run
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # they send and compute by operators of their shares, which come by then
            return NotImplemented
        # functions were seen where a script calls them; each look at a tensor below would be seen as one
        with torch._C.DisableTorchFunction():  # noqa: SLF001  (no public name)
            return self._watched(func, args, kwargs or {})

    def _watched(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_question(func):  # two calls in three
            return asked(func, args, kwargs)
        if func is _WAIT and type(args[0]) is FakeTensor:
            return args[0]  # as it does with a real one; of a fake one it would make another
        result = func(*args, **kwargs)
        if self._aside:
            return result
        if func.namespace in _COLLECTIVES:
            self._note(func, (args, kwargs), result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, self._kind):
                self.hold(leaf)
        return result

    def hold(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now on, if it was not."""
        own = share_of(tensor)
        storage = own.untyped_storage()
        key = storage._cdata  # noqa: SLF001  (the address; no public accessor)
        if key not in self._bytes:
            self._watches[key] = weakref.ref(storage, lambda _: self._freed(key))
        self._counted(key, storage.nbytes())

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Count a storage anew that was made larger or smaller in place, as FSDP2 does with parameters."""
        if storage._cdata in self._bytes:  # noqa: SLF001
            self._counted(storage._cdata, storage.nbytes())  # noqa: SLF001

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Count nothing that is made inside."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    def forget_traffic(self) -> None:
        """Begin to count what is sent anew."""
        self._sent.clear()
        self._sent_bytes.clear()

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """What was sent, in the order of its bytes."""
        found = [
            Traffic(name=name, ranks=ranks, count=count, bytes=self._sent_bytes[name, ranks])
            for (name, ranks), count in self._sent.items()
        ]
        return tuple(sorted(found, key=lambda each: -each.bytes))

    def _counted(self, key: int, size: int) -> None:
        self.live += size - self._bytes.get(key, 0)
        self._bytes[key] = size
        self.peak = max(self.peak, self.live)

    def _freed(self, key: int) -> None:
        self.live -= self._bytes.pop(key)
        del self._watches[key]

    def _note(self, func: Any, given: Any, result: Any) -> None:
        name = func.name().split("::")[1].split(".")[0].strip("_")
        if name in _SILENT or func.name().split("::")[1] in _SILENT:
            return
        groups = [leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.ScriptObject)]
        ranks = next((size for group in groups if (size := _group_size(group))), dist.get_world_size())
        sizes = (_tensor_bytes(given), _tensor_bytes(result))
        self._sent[name, ranks] += 1
        self._sent_bytes[name, ranks] += max(sizes)


def _tensor_bytes(tree: Any) -> int:
    """Return the bytes of the largest tensor: of a collective, the buffer that all ranks fill."""
    return max((leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)), default=0)


def _group_size(group: Any) -> int:
    try:
        return int(dist.ProcessGroup.unbox(group).size())
    except (RuntimeError, TypeError, AttributeError):
        return 0


@contextmanager
def storages_followed(watch: Watch) -> Iterator[None]:
    """Let the watch hear of storages that change their size, and not of those that never are.

    No operator is dispatched for the first. The others are whole tensors that DTensors' operators are
    asked about to know shapes: torch 2.11 makes them where the watch sees them.
    """
    resize: Callable[[torch.UntypedStorage, int], Any] = torch.UntypedStorage.resize_

    def seen(storage: torch.UntypedStorage, size: int) -> Any:
        result = resize(storage, size)
        watch.resized(storage)
        return result

    propagate: Callable[..., Any] = getattr(ShardingPropagator, _PROPAGATES)

    def unseen(propagator: ShardingPropagator, schema: Any) -> Any:
        with watch.aside():
            return propagate(propagator, schema)

    with (
        patch.object(torch.UntypedStorage, "resize_", seen),
        patch.object(ShardingPropagator, _PROPAGATES, unseen),
    ):
        yield
