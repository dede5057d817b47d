"""Ranks that try something together: where one of them fails, all hear of it at once.

A rank whose code raises would leave the others in a collective that it never comes to, up to its timeout.
So before each collective of a trial all ranks say which one they have come to. One that failed says that
instead, and all stop.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from parastrat.errors import OutOfStepError, ParastratError, WrapError
from parastrat.runtime.building import described
from parastrat.runtime.communication import messages
from parastrat.runtime.communication.agreement import together

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

T = TypeVar("T")

#: said instead of where a rank is; checksums of places are not negative
_FAILED = -1
_COLLECTIVES = ("c10d", "_c10d_functional")
#: named like collectives, but nobody is waited for
_ALONE = ("wait_tensor", "wrap_tensor_autograd")


def in_step(action: Callable[[], T], mesh: DeviceMesh) -> T:
    """Run ``action``, in which a mesh's ranks ``meet``, on every rank; if it raises on some, all raise.

    Raises:
        ParastratError: this rank's own failure.
        MismatchError: on the other ranks of the job, naming the first that failed and why.
    """
    axes = (mesh.mesh_dim_names or ("tp",))[-1].split("_")  # of both, as torch joins them

    def watched() -> T:
        try:
            result = action()
        except OutOfStepError:
            raise
        except Exception as error:
            _failed(mesh)
            if isinstance(error, ParastratError):
                raise
            raise WrapError(
                f"what a division by {' and '.join(axes)} is proven on raised {described(error)}",
                hint=f"plan without {axes[0]}: parastrat recommend --{axes[0]} 1, such as fsdp2 over all "
                "ranks",
            ) from error
        meet("the end", mesh)
        return result

    return together(watched)


def meet(place: str, mesh: DeviceMesh) -> None:
    """Wait until all ranks of a mesh have come to the same place.

    Raises:
        OutOfStepError: on all of them, if one failed or came to another.
    """
    codes = messages.one_each(zlib.crc32(place.encode()), torch.device(mesh.device_type), mesh.get_group())
    if _FAILED in codes:
        raise OutOfStepError("another rank failed", hint="see the output of that rank")
    if len(set(codes)) > 1:
        raise OutOfStepError(
            f"the ranks do not try the same: this one came to {place[:80]}",
            hint="start all ranks with the same script, arguments and versions of torch",
        )


def first_said(own: str, mesh: DeviceMesh) -> str:
    """Return what the first rank of a mesh says that says anything; all of them call it.

    Raises:
        OutOfStepError: if another rank failed, or does something else.
    """
    meet("what is said", mesh)
    every = [own] * mesh.size()
    dist.all_gather_object(every, own, group=mesh.get_group())
    return next((said for said in every if said), "")


@contextmanager
def steps(mesh: DeviceMesh) -> Iterator[None]:
    """Let each collective inside begin once all ranks of a mesh have come to it.

    Raises:
        OutOfStepError: if another rank failed inside, or came to another collective.
    """
    watch = _Steps(mesh)
    try:
        with watch:
            yield
        watch.meet("the end of a trial")
    except Exception:
        if watch.stopped is None:
            _failed(mesh)
            raise
        raise watch.stopped from None  # code between may have made something else of it


class _Steps(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Lets ranks meet before each collective."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.supports_higher_order_operators = True
        self._mesh = mesh
        #: why the ranks are not together any more
        self.stopped: OutOfStepError | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:  # they send by operators of their shares, which come by then
            return NotImplemented
        if func.namespace in _COLLECTIVES and func.name().split("::")[1].split(".")[0] not in _ALONE:
            self.meet(func.name())
        return func(*args, **(kwargs or {}))

    def meet(self, place: str) -> None:
        """Wait for the others, unless the ranks are apart already: the module may have gone on."""
        if self.stopped is None:
            try:
                meet(place, self._mesh)
            except OutOfStepError as error:
                self.stopped = error
        if self.stopped is not None:
            raise self.stopped


def _failed(mesh: DeviceMesh) -> None:
    """Tell the others, wherever they are, that this rank failed."""
    messages.one_each(_FAILED, torch.device(mesh.device_type), mesh.get_group())
