"""PS662, PS663 and PS666: what stands behind torchrun's options, as torchrun reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import count_of, counted, endpoint_of, is_partly_unknown, nodes_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.SCRIPT

#: of the shell, or of a template that somebody fills in: nobody knows here what will stand there
_FILLED_IN = re.compile(r"[$`{}<>%@]")
#: the name of a device: torch's own, or that of a backend beside it
_DEVICE = re.compile(r"[A-Za-z_]\w*")
_ENDPOINT = re.compile(r"[^:]+:([^:]*)")
#: what Slurm gives each task, and the batch shell as the first
_OF_TASKS = re.compile(r"\$\{?SLURM_(NODEID|PROCID)\}?")
_MOST_PORTS = 2**16


def _number(text: str) -> int | None:
    """Return the number that Python makes of a text; None where it makes none."""
    try:
        return int(text)
    except ValueError:
        return None


def _is_nodes(text: str) -> bool:
    """Whether torchrun takes a text for a number of nodes, or for the fewest and the most."""
    counts = [_number(part) for part in text.split(":")]
    known = [count for count in counts if count is not None]
    return len(known) == len(counts) <= 2 and 0 < known[0] <= known[-1]


def _is_processes(text: str) -> bool:
    count = _number(text)
    return _DEVICE.fullmatch(text) is not None if count is None else count > 0


def _is_natural(text: str) -> bool:
    return (_number(text) or 0) >= 0 and _number(text) is not None


def _is_port(text: str) -> bool:
    return _is_natural(text) and int(text) < _MOST_PORTS


def _port_of(file: ConfigFile) -> str | None:
    """Return the port of HOST:PORT where torch's own rendezvous meet; None for no port, and for IPv6."""
    stated = _ENDPOINT.fullmatch(str(file.get("torchrun.rdzv-endpoint") or ""))
    is_torchs = file.get("torchrun.rdzv-backend") in (None, "static", "c10d")
    return stated[1] if stated is not None and is_torchs else None


_VALUES = {
    "nnodes": (_is_nodes, "a number of nodes, or MIN:MAX"),
    "nproc-per-node": (_is_processes, "1 or more, or gpu"),
    "node-rank": (_is_natural, "0 for the first node, 1 for the second"),
    "master-port": (_is_port, "a port below 65536"),
    "rdzv-endpoint": (_is_port, "a port below 65536 behind the host"),
    "max-restarts": (_is_natural, "0 or more"),
}


@file_rule("PS662", Severity.ERROR, _FORMAT, source=_RUN)
def counts_are_what_torchrun_reads(file: ConfigFile) -> Iterator[Hit]:
    """Torchrun's counts must be counts.

    --nproc-per-node is 1 or more, or the name of a device whose number torchrun asks for; --nnodes is a
    number, or MIN:MAX. torchrun stops at anything else, on every node, when the job has waited in the
    queue.
    """
    for name, (is_right, wanted) in _VALUES.items():
        value = file.get(f"torchrun.{name}")
        judged = _port_of(file) if name == "rdzv-endpoint" else value
        if isinstance(judged, str) and not _FILLED_IN.search(judged) and not is_right(judged):
            yield Hit(
                message=f"--{name} {value}" if value else f"--{name} is empty",
                fix=f"write --{name} with {wanted}",
                key=f"torchrun.{name}",
            )


@file_rule("PS663", Severity.ERROR, _FORMAT, source=_RUN)
def static_nodes_have_numbers(file: ConfigFile) -> Iterator[Hit]:
    """The static rendezvous wants a number for every node.

    It is torchrun's default, also where --rdzv-endpoint says where to meet. Without --node-rank each node
    is number 0: each opens a store of its own, and waits there for the others. So it is where the batch
    shell puts in its own number, before srun starts anything.
    """
    nodes, stated, told = nodes_of(file), endpoint_of(file), str(file.get("torchrun.nnodes") or "")
    if stated is None or nodes is None or nodes < 2 or ":" in told or is_partly_unknown(file):
        return
    if file.get("started.by") == "script" and file.get("started.only") == "no":
        return  # another launch of the script may be of the other nodes
    is_static = file.get("torchrun.rdzv-backend") in (None, "static")
    rank, is_alone = file.get("torchrun.node-rank"), file.get("torchrun.standalone") is not None
    before_srun = file.get("started.by") == "srun" and file.get("started.shell") is None
    if is_static and before_srun and _OF_TASKS.fullmatch(str(rank)):
        yield Hit(
            message=f"--node-rank {rank} is 0 in the batch shell, and so on {nodes} nodes",
            fix="write srun bash -c 'torchrun ...', which each node reads itself; or --rdzv-backend c10d",
            key="torchrun.node-rank",
        )
    if is_static and rank is None and not is_alone:
        yield Hit(
            message=f"--{stated[0]} for {nodes} nodes without --rdzv-backend: each is node 0",
            fix="add --rdzv-backend c10d and --rdzv-endpoint, or another --node-rank on each node",
            key=f"torchrun.{stated[0]}",
        )


@file_rule("PS666", Severity.ERROR, _FORMAT, source=_RUN)
def ranks_of_nodes_begin_at_0(file: ConfigFile) -> Iterator[Hit]:
    """--node-rank counts from 0 to --nnodes - 1.

    Each node has a number of its own. The static rendezvous waits for the one that is missing until its
    time is over.
    """
    rank, nodes = count_of(file, "torchrun.node-rank"), count_of(file, "torchrun.nnodes")
    is_static = file.get("torchrun.rdzv-backend") in (None, "static")
    if is_static and rank is not None and nodes is not None and 0 < nodes <= rank:
        yield Hit(
            message=f"--node-rank {rank} of {counted(nodes)}",
            fix=f"write a number from 0 to {nodes - 1}, another one on each node",
            key="torchrun.node-rank",
        )
