"""Which process this is, how it finds the others, and how it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ports import free_port

from parastrat.errors import LaunchError
from parastrat.plan import Backend
from parastrat.runtime.launching import world as launched
from parastrat.runtime.launching.world import (
    World,
    backend_string,
    first_of_nodelist,
    set_rendezvous,
    world_of,
)

SCRIPT = Path(__file__).parent / "leaving.py"


@pytest.mark.parametrize(
    ("environment", "world"),
    [
        ({}, World()),
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, World(rank=3, world_size=8, local_rank=1)),
        (
            {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            World(rank=5, world_size=8, local_rank=1),
        ),
        (
            {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"},
            World(rank=9, world_size=16, local_rank=1),
        ),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, World(rank=1, world_size=2, local_rank=1)),
        # a batch script's own shell, and a shell in an allocation, are one process
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, World()),
        # torchrun inside an srun step: the inner launcher counts
        (
            {
                "RANK": "2",
                "WORLD_SIZE": "4",
                "LOCAL_RANK": "2",
                "SLURM_PROCID": "0",
                "SLURM_STEP_NUM_TASKS": "1",
            },
            World(rank=2, world_size=4, local_rank=2),
        ),
    ],
)
def test_knows_the_launchers(environment: dict[str, str], world: World) -> None:
    assert world_of(environment) == world


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [
        ("gpu003", "gpu003"),
        ("gpu[003-010,12],login1", "gpu003"),
        ("rack1-node[7]", "rack1-node7"),
        ("a,b[1-2]", "a"),
        ("b[1,2]-ib", "b1-ib"),
    ],
)
def test_reads_the_first_host_of_a_nodelist(nodelist: str, first: str) -> None:
    assert first_of_nodelist(nodelist) == first


def test_finds_rank_0_under_slurm_and_open_mpi() -> None:
    slurm = {"SLURM_STEP_NODELIST": "n[4-5]", "SLURM_JOB_ID": "12345"}
    set_rendezvous(slurm, World(rank=1, world_size=2))
    assert (slurm["MASTER_ADDR"], slurm["MASTER_PORT"], slurm["RANK"]) == ("n4", "22345", "1")
    mpi = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    set_rendezvous(mpi, World(rank=1, world_size=2))
    assert mpi["MASTER_ADDR"] == "127.0.0.1"
    with pytest.raises(LaunchError, match="the address of rank 0 is not known"):
        set_rendezvous({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, World(rank=1, world_size=4))


def test_what_is_set_already_stays() -> None:
    environment = {"MASTER_ADDR": "head", "MASTER_PORT": "1", "SLURM_STEP_NODELIST": "n4"}
    set_rendezvous(environment, World(world_size=2))
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"]) == ("head", "1")


def test_gpus_keep_gloo_for_what_is_on_the_host() -> None:
    assert backend_string(Backend.NCCL, "cuda") == "cpu:gloo,cuda:nccl"
    assert backend_string(Backend.GLOO, "cuda") == "cpu:gloo,cuda:gloo"
    assert backend_string(Backend.GLOO, "cpu") == "gloo"
    assert backend_string(Backend.MPI, "cpu") == "mpi"


def start(port: int, *arguments: str) -> list[subprocess.Popen[str]]:
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *arguments],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"), [(("dp_replicate",), 0), (("dp_shard",), 0), (("dp_replicate", "raise"), 3)]
)
def test_processes_end_as_they_should(arguments: tuple[str, ...], code: int) -> None:
    """Without our farewell, DDP on Gloo aborts in some of the runs (pytorch#190489)."""
    ended = [
        (process.communicate(timeout=120)[1], process.returncode)
        for process in start(free_port(), *arguments)
    ]
    assert [returncode for _, returncode in ended] == [code, code], ended
    assert not any("terminate called" in errors for errors, _ in ended)


def test_a_process_group_that_the_script_began_is_left_too(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[object] = []
    monkeypatch.setattr(launched.atexit, "register", registered.append)
    monkeypatch.setattr(launched.dist, "is_initialized", lambda: True)
    launched._leave_at_exit.cache_clear()
    try:
        for _ in range(2):
            launched.join_process_group("gloo", torch.device("cpu"))
    finally:
        launched._leave_at_exit.cache_clear()
    assert registered == [launched._leave]
