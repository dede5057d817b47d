"""Gloo's groups for DTensors: one worker thread each, as two of them corrupt the heap.

torch gives every Gloo group two threads. Each writes the name of the collective that it has finished to one
``std::string``, and no lock guards it (``ProcessGroupGloo::runLoop``, torch 2.11 to 2.13). Short names stay
inside the string, but every all-gather of a DTensor is an ``ALLGATHER_COALESCED``, whose name is allocated:
where two collectives end together, it is written after it was freed, or freed twice. The process then dies
later, of "malloc(): unaligned tcache chunk detected". ``benchmarks/gloo_threads.py`` shows both.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

#: name of the backend that torch makes such groups of
GLOO = "gloo"
#: groups that were made by ``group_apart``, of each set of ranks
_APART: Counter[tuple[int, ...]] = Counter()


@contextmanager
def one_gloo_thread() -> Iterator[None]:
    """Let groups that are made inside have one worker thread, where they are Gloo's.

    torch takes no options for them, so its class stands aside for a moment.
    """
    if not dist.is_gloo_available():
        yield
        return
    with patch.object(distributed_c10d, "ProcessGroupGloo", _one_threaded()):
        yield


def mesh_of_dtensors(
    device_type: str, shape: tuple[int, ...], names: tuple[str, ...], axes: tuple[str, ...]
) -> DeviceMesh:
    """Return a mesh over all ranks whose ``axes`` DTensors may be divided along; all ranks call it."""
    own: dict[int | str, Any] = {axis: backend for axis in axes if (backend := _own_backend(device_type))}
    with one_gloo_thread():
        return init_device_mesh(device_type, shape, mesh_dim_names=names, backend_override=own)


def flat(part: DeviceMesh) -> DeviceMesh:
    """Return a mesh of one axis over all axes of a part of a mesh; all ranks call it.

    DTensors that are divided along all of them are gathered over its group too.
    """
    if part.ndim == 1:
        return part
    name = "_".join(part.mesh_dim_names or ())
    with one_gloo_thread():
        return part._flatten(name, backend_override=_own_backend(part.device_type))  # noqa: SLF001  (as torchtitan does: there is no public way)


def overlapping_group(whole: DeviceMesh, axis: str) -> dist.ProcessGroup | None:
    """Return a group over an axis' ranks whose collectives may end together; all ranks call it.

    No DTensor may be gathered over it. Plain tensors may, as names of their collectives are short, and two
    threads make steps of FSDP2 and tensor parallelism 3 % faster. None: Gloo does not send them.
    """
    if _own_backend(whole.device_type) is None:
        return None
    if whole.ndim == 1:
        return dist.group.WORLD
    names = whole.mesh_dim_names or ()
    rows = whole.mesh.movedim(names.index(axis), -1).flatten(0, -2)
    return _subgroup(rows.tolist())


def group_apart(ranks: list[int], timeout: timedelta) -> dist.ProcessGroup:
    """Return a group of some ranks that nothing else uses; these ranks call it, and no others need to.

    Whoever waits in it waits for what was meant: the next collective of the others is not taken for it.

    torch names such groups by their ranks and by how many groups the process has (``_hash_ranks_to_str``,
    torch 2.11 to 2.13). Ranks that have been in different groups before would wait for each other under
    different names: here the number is of those of the same ranks.
    """
    _APART[tuple(ranks)] += 1
    name = f"parastrat_apart_{'_'.join(map(str, ranks))}_{_APART[tuple(ranks)]}"
    with (
        one_gloo_thread(),
        # a torch that knows no such function keeps its own names
        patch.object(distributed_c10d, "_process_group_name", lambda *_, **__: name, create=True),
    ):
        group: dist.ProcessGroup = dist.new_group(
            ranks, timeout=timeout, backend=GLOO, use_local_synchronization=True
        )
    return group


def _subgroup(rows: list[list[int]]) -> dist.ProcessGroup:
    enumerated: Callable[..., tuple[dist.ProcessGroup, Any]] = dist.new_subgroups_by_enumeration
    own, _ = enumerated(rows, backend=GLOO)
    return own


def _own_backend(device_type: str) -> str | None:
    """Return Gloo where the default group sends these tensors by it; None: that group may be shared.

    A mesh axis that takes all ranks would use it, with as many threads as whoever began it chose.
    """
    by_gloo = f"{device_type}:{GLOO}" in dist.get_backend_config().split(",")
    return GLOO if by_gloo else None


@cache
def _one_threaded() -> type[Any]:
    """Return torch's class of Gloo's groups, with one thread; not every torch has one."""
    gloo: Any = dist.ProcessGroupGloo

    class OneThreaded(gloo):  # type: ignore[misc]  # known at run time alone
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta, **further: Any) -> None:
            options = gloo._Options()  # noqa: SLF001  (there is no public way to any of them)
            options._timeout = timeout  # noqa: SLF001
            options._threads = 1  # noqa: SLF001
            options._devices = _devices()  # noqa: SLF001
            for name, value in further.items():  # from torch 2.14 on, enable_reconfigure
                setattr(options, name, value)
            super().__init__(store, rank, size, options)

    return OneThreaded


def _devices() -> list[Any]:
    """Return the network interfaces that torch would choose."""
    gloo: Any = dist.ProcessGroupGloo
    given = os.environ.get("GLOO_SOCKET_IFNAME", "")
    if not given:
        return [gloo.create_default_device()]
    return [gloo.create_device(interface=name) for name in given.split(",")]
