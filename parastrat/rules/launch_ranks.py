"""PS663 and PS666: the numbers that nodes are told of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    OF_TASKS,
    count_of,
    endpoint_of,
    is_partly_unknown,
    is_static,
    nodes_of,
    nodes_of_step,
    rank_of,
    told_nodes,
    variable_in,
)
from parastrat.rules.launchers import DEEPSPEED, TORCHRUN, launcher_of, reaches_others
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.SCRIPT

#: what counts the tasks of one node: where there is one, it is 0 on each
_OF_NODE = "SLURM_LOCALID"


def _same_everywhere(file: ConfigFile, rank: str, nodes: int) -> str | None:
    """Return why a number of a node is the same on all of them; None where it may be another on each."""
    name = variable_in(rank)
    if name == _OF_NODE:
        return "counts the tasks of one node, and is 0 for the first"
    if file.get("started.by") != "srun" or file.get("started.tasks") is not None:
        return None
    here = file.get("started.shell") is None
    if name in OF_TASKS:
        return "is 0 in the batch shell" if here else None
    if here and name and variable_in(str(file.get(f"env.{name}") or "")) in OF_TASKS:
        return "is set in the batch shell, to 0"
    started = nodes_of_step(file)
    alone = whole_number(rank) is not None and started is not None and started >= nodes
    return "is the same for all that srun starts" if alone else None


@file_rule("PS663", Severity.ERROR, _FORMAT, source=_RUN, covers=("PIT510",))
def static_nodes_have_numbers(file: ConfigFile) -> Iterator[Hit]:
    """The static rendezvous wants a number for every node.

    It is the default of torchrun and of accelerate, also where an endpoint says where to meet. Without
    --node-rank (--machine_rank) each node is number 0: each opens a store of its own, and waits there for
    the others. So it is where the batch shell puts in its own number, before srun starts anything, and
    where the number is that of a task on its node (SLURM_LOCALID), or simply the same. deepspeed --no_ssh
    wants such a number too.
    """
    nodes, stated, launcher = nodes_of(file), endpoint_of(file), launcher_of(file)
    rank, is_alone = rank_of(file), file.get("torchrun.standalone") is not None
    if nodes is None or nodes < 2 or ":" in str(file.get("torchrun.nnodes") or ""):
        return
    # whether what is not stated stands elsewhere
    unknown = is_partly_unknown(file) and (launcher is TORCHRUN or rank is None)
    if unknown or not is_static(file) or reaches_others(file):
        return
    if file.get("started.by") == "script" and file.get("started.only") == "no":
        return  # another launch of the script may be of the other nodes
    needs_place = launcher is not DEEPSPEED
    if needs_place and stated is None:
        return
    why = _same_everywhere(file, rank, nodes) if rank is not None else None
    if why is not None:
        mend = (
            f"srun bash -c '{launcher.command} ... --{launcher.rank} $SLURM_NODEID ...', in single quotes"
        )
        yield Hit(
            message=f"--{launcher.rank} {rank} {why}: so on all {nodes} nodes",
            fix=f"write {mend}, which each node reads itself"
            + ("; or --rdzv-backend c10d" if launcher is TORCHRUN else ""),
            key=f"{launcher.table}.{launcher.rank}",
        )
    if rank is None and stated is not None and not is_alone and launcher is TORCHRUN:
        yield Hit(
            message=f"--{stated[0]} for {nodes} nodes without --rdzv-backend: each is node 0",
            fix="add --rdzv-backend c10d and --rdzv-endpoint, or another --node-rank on each node",
            key=f"torchrun.{stated[0]}",
        )


@file_rule("PS666", Severity.ERROR, _FORMAT, source=_RUN)
def ranks_of_nodes_begin_at_0(file: ConfigFile) -> Iterator[Hit]:
    """Nodes are numbered from 0 to their number less one.

    Each node has a number of its own. The static rendezvous waits for the one that is missing until its
    time is over.
    """
    launcher, nodes = launcher_of(file), told_nodes(file)
    key = f"{launcher.table}.{launcher.rank}"
    rank = count_of(file, key)
    if reaches_others(file) or not is_static(file):
        return
    if rank is not None and nodes is not None and 0 < nodes <= rank:
        yield Hit(
            message=f"--{launcher.rank} {rank} of {counted(nodes, 'node')}",
            fix=f"write a number from 0 to {nodes - 1}, another one on each node",
            key=key,
        )
