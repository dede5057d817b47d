"""The processes of a job: which one this is, how they find each other, and how they leave."""

from __future__ import annotations

import atexit
import gc
import os
import re
import sys
import weakref
from collections.abc import Mapping, MutableMapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import LaunchError
from parastrat.launch import FIRST_PORT, PORTS
from parastrat.plan import Backend
from parastrat.runtime.communication.gloo import one_gloo_thread

#: how long a collective may wait for the other ranks
TIMEOUT = timedelta(minutes=10)
#: how long a rank that ends well waits for the others before it closes its connections
FAREWELL = timedelta(seconds=20)

#: variables by which launchers tell a process its rank, the world size and its rank on the node
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),  # Open MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),  # srun; absent in a batch script's shell
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH, Intel MPI
)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process among those of its job."""

    rank: int = 0
    world_size: int = 1
    #: rank among the processes of this node
    local_rank: int = 0


def world_of(environment: Mapping[str, str]) -> World:
    """Return what torchrun, srun or mpirun tell this process; one process alone without a launcher."""
    for rank, size, local_rank in _LAUNCHERS:
        if rank in environment and size in environment:
            return World(
                rank=int(environment[rank]),
                world_size=int(environment[size]),
                local_rank=int(environment.get(local_rank, environment[rank])),
            )
    return World()


def current_world() -> World:
    """Return this process's place in the process group, or in the one that its launcher prepared."""
    told = world_of(os.environ)
    if not dist.is_initialized():
        return told
    rank, size = dist.get_rank(), dist.get_world_size()
    if told == World():  # nobody said which device is this rank's: ranks on a node are neighbours
        return World(rank=rank, world_size=size, local_rank=rank)
    return replace(told, rank=rank, world_size=size)


def set_rendezvous(environment: MutableMapping[str, str], world: World) -> None:
    """Set what ``init_process_group`` reads and torchrun alone provides.

    Raises:
        LaunchError: if the address of rank 0 is not known.
    """
    environment["RANK"] = str(world.rank)
    environment["WORLD_SIZE"] = str(world.world_size)
    environment["LOCAL_RANK"] = str(world.local_rank)
    if "MASTER_ADDR" not in environment:
        environment["MASTER_ADDR"] = _first_host(environment, world)
    if "MASTER_PORT" not in environment:
        job = int(environment.get("SLURM_JOB_ID", "0"))
        environment["MASTER_PORT"] = str(FIRST_PORT + job % PORTS) if job else "29500"


def _first_host(environment: Mapping[str, str], world: World) -> str:
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST"))
    if hosts:
        return first_of_nodelist(hosts)
    on_this_node = environment.get(
        "OMPI_COMM_WORLD_LOCAL_SIZE", environment.get("MPI_LOCALNRANKS", str(world.world_size))
    )
    if int(on_this_node) == world.world_size:
        return "127.0.0.1"
    raise LaunchError(
        "the address of rank 0 is not known: the job spans several nodes and MASTER_ADDR is not set",
        hint="export MASTER_ADDR=<host of rank 0> to all processes (mpirun -x MASTER_ADDR)",
    )


def first_of_nodelist(nodelist: str) -> str:
    """Return the first host of a Slurm list such as ``gpu[003-010,12],login1``: ``gpu003``."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", re.split(r",(?![^\[]*\])", nodelist)[0])


def backend_string(backend: Backend, device_type: str) -> str:
    """Return the backends of ``init_process_group``: one for the device, and Gloo for CPU tensors.

    Checkpoints, objects and offload need collectives on CPU tensors beside the device's.
    """
    if device_type == "cpu":
        return Backend.GLOO.value if backend is Backend.NCCL else backend.value
    return f"cpu:gloo,{device_type}:{backend.value}"


def own_device(device_type: str, world: World) -> torch.device:
    """Return this process's device and make it current."""
    if device_type == "cpu":
        return torch.device("cpu")
    device = torch.device(device_type, world.local_rank % torch.accelerator.device_count())
    torch.accelerator.set_device_index(device)
    return device


def join_process_group(backends: str, device: torch.device) -> None:
    """Initialise the default process group unless somebody has.

    Raises:
        LaunchError: if rank 0's address is unknown or a backend is missing from this torch.
    """
    _leave_at_exit()
    if dist.is_initialized():
        return
    set_rendezvous(os.environ, world_of(os.environ))
    on_cpu = device.type == "cpu"
    try:
        # beside a device's backend Gloo has little to do, and may gather DTensors that were offloaded
        with nullcontext() if on_cpu else one_gloo_thread():
            dist.init_process_group(backends, timeout=TIMEOUT, device_id=None if on_cpu else device)
    except (RuntimeError, AssertionError, ValueError) as error:
        raise LaunchError(
            f"init_process_group({backends!r}) failed: {error}",
            hint="check that this torch has the backend, and MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE",
        ) from error


@cache
def _leave_at_exit() -> None:
    """End the process group when the interpreter does, whoever began it."""
    atexit.register(_leave)


_wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # modules compare by identity


def release_at_exit(model: nn.Module) -> None:
    """Note a wrapped model whose reducer must go before the process group does."""
    _wrapped.add(model)


def _leave() -> None:
    """End the process group, unless the script has.

    A DDP reducer that outlives the interpreter keeps Gloo's threads alive, and the process aborts
    ("terminate called without an active exception", pytorch#190489). A rank that closes its connections
    while another still uses them aborts the other; so all wait, unless this one failed.
    """
    for model in _wrapped:
        if isinstance(model, DistributedDataParallel):
            for name in ("reducer", "logger"):
                model.__dict__.pop(name, None)
    gc.collect()
    if not dist.is_initialized():
        return
    # sys.last_value is set once the interpreter has printed the exception that ends it
    if not hasattr(sys, "last_value") and dist.get_backend() == dist.Backend.GLOO:
        with suppress(RuntimeError):  # a peer is gone or late; there is nothing left to wait for
            dist.monitored_barrier(timeout=FAREWELL)
    dist.destroy_process_group()
