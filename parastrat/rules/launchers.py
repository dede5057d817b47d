"""What each launcher calls what all of them are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """A launcher and its options, as their names stand in its table."""

    #: where its options stand in a script's tables
    table: str
    #: as it is written
    command: str
    nodes: str
    processes: str
    #: whether they are counted on all nodes together
    in_all: bool = False
    rank: str
    #: where nodes meet, the option that is read first
    addresses: tuple[str, ...]


TORCHRUN = Launcher(
    table="torchrun",
    command="torchrun",
    nodes="nnodes",
    processes="nproc-per-node",
    rank="node-rank",
    addresses=("rdzv-endpoint", "master-addr"),
)
ACCELERATE = Launcher(
    table="accelerate",
    command="accelerate launch",
    nodes="num_machines",
    processes="num_processes",
    in_all=True,
    rank="machine_rank",
    addresses=("main_process_ip",),
)
DEEPSPEED = Launcher(
    table="deepspeed",
    command="deepspeed",
    nodes="num_nodes",
    processes="num_gpus",
    rank="node_rank",
    addresses=("master_addr",),
)
#: of DeepSpeed's ways to other machines, those in which each machine starts its own part
_BY_HAND = ("standard", "nossh")


def launcher_of(file: ConfigFile) -> Launcher:
    """Return the launcher of a script's launch; torchrun, without its options, where there is none."""
    return next((each for each in (ACCELERATE, DEEPSPEED) if file.get(each.table) is not None), TORCHRUN)


def reaches_others(file: ConfigFile) -> bool | None:
    """Return whether a launcher starts the other nodes itself, through ssh or MPI; None if unknown."""
    launcher = launcher_of(file)
    if launcher is TORCHRUN:
        return False
    if launcher is DEEPSPEED:
        return file.get("deepspeed.no_ssh") is None
    stated = file.get("accelerate") or {}
    if "mpirun_hostfile" in stated or "tpu" in stated:
        return True
    if "use_deepspeed" in stated or stated.get("distributed_type") == "DEEPSPEED":
        return stated.get("deepspeed_multinode_launcher") not in _BY_HAND
    one_each = ("multi_gpu", "use_fsdp", "use_megatron_lm", "cpu", "machine_rank")
    known = file.get("started.config") == "read" or not stated.keys().isdisjoint(one_each)
    return False if known else None
