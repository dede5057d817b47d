"""The processes of one node, which measure together."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from parastrat.calibration import Machinery, Operation, Timing, Wanted
from parastrat.errors import LaunchError
from parastrat.launch import ON_PROCESSORS
from parastrat.runtime.environment import environment
from parastrat.runtime.measuring.actions import LAUNCHES, action_of
from parastrat.runtime.measuring.repeats import repeated, repeated_behind

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    from parastrat.hardware import Hardware

#: a collective that takes longer has lost a rank
_DEADLINE = timedelta(seconds=120)
_A_LOOK_S = 1.0
#: what processors compute before each collective: about a layer of a small model
_BEFORE = Wanted(operation=Operation.MATMUL, sides=(256, 256, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    several: tuple[Wanted, ...]
    device: str
    ranks: int
    threads: int
    store: str


def measure(
    hardware: Hardware, several: tuple[Wanted, ...], told: Callable[[Wanted], None]
) -> tuple[tuple[Timing, ...], Machinery]:
    """Time kernels and collectives on one node, in as many processes at once as it has devices.

    Args:
        hardware: this node's; its processes share the cores.
        several: what is timed, in this order.
        told: called with each thing when it has been timed.

    Raises:
        LaunchError: a process ended, or the device that the hardware names is not there.
    """
    ranks = hardware.devices_per_node
    threads = max(1, (hardware.host.cores or os.cpu_count() or 1) // ranks)
    kind = hardware.device.type.value
    if kind != "cpu" and not torch.get_device_module(kind).is_available():
        raise LaunchError(
            f"torch {torch.__version__} finds no {kind} device here",
            hint="install torch for this device, or measure the processors with --on cpu",
        )
    with tempfile.TemporaryDirectory() as folder:
        task = _Task(
            several=several,
            device=kind,
            ranks=ranks,
            threads=threads,
            store=str(Path(folder) / "store"),
        )
        found = _together(task, told)
    software = f"torch {torch.__version__}"
    return found, Machinery(
        ranks=ranks,
        threads=threads,
        software=software,
        date=date.today().isoformat(),  # noqa: DTZ011 - a day
    )


def _together(task: _Task, told: Callable[[Wanted], None]) -> tuple[Timing, ...]:
    """Start the processes, and return what the first of them reports."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    processes = [
        context.Process(target=_serve, args=(rank, task, theirs if rank == 0 else None))
        for rank in range(task.ranks)
    ]
    with environment(ON_PROCESSORS if task.device == "cpu" else {}):
        for process in processes:
            process.start()
    theirs.close()
    found: list[Timing] = []
    try:
        while len(found) < len(task.several):
            if not ours.poll(_A_LOOK_S):
                _check(processes)
                continue
            found.append(ours.recv())
            told(found[-1].wanted)
    except EOFError as error:
        for process in processes:
            process.join(_A_LOOK_S)
        _check(processes)
        raise LaunchError("the processes ended early", hint="see what they say above") from error
    finally:
        for process in processes:
            process.join(_A_LOOK_S if len(found) == len(task.several) else 0)
            process.kill()
            process.join()
    return tuple(found)


def _check(processes: list[Any]) -> None:
    for rank, process in enumerate(processes):
        if process.exitcode not in (None, 0):
            raise LaunchError(
                f"process {rank} ended with exit code {process.exitcode}",
                hint="a negative code is a signal, -9 mostly for want of memory; else see above",
            )


def timed(each: Wanted, device: torch.device) -> tuple[float, float, int]:
    """Return the median seconds of one thing, the spread and the number of repeats.

    The threads that carry a collective of processors share cores with those that compute, so that it takes
    several times as long there as one after the other.
    """
    action = action_of(each, device)
    if each.operation.is_collective and device.type == "cpu":
        return repeated_behind(action_of(_BEFORE, device), action, device)
    return repeated(action, device)


def _serve(rank: int, task: _Task, pipe: Connection | None) -> None:
    torch.set_num_threads(task.threads)
    device = torch.device(task.device) if task.device == "cpu" else torch.device(task.device, rank)
    if task.device != "cpu":
        torch.get_device_module(device).set_device(device)
    if task.ranks > 1:
        backend = "gloo" if task.device == "cpu" else dist.get_default_backend_for_device(device)
        both = backend if task.device == "cpu" else f"cpu:gloo,{task.device}:{backend}"
        place = f"file://{task.store}"
        dist.init_process_group(
            both, init_method=place, rank=rank, world_size=task.ranks, timeout=_DEADLINE
        )
    for each in task.several:
        seconds, spread, repeats = timed(each, device)
        if each.operation is Operation.LAUNCH:
            seconds /= LAUNCHES
        if pipe is not None:
            pipe.send(Timing(wanted=each, seconds=seconds, spread=spread, repeats=repeats))
    if task.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()
