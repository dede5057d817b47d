"""PS662, PS663 and PS666: what stands behind torchrun's options, as torchrun reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    count_of,
    counted,
    endpoint_of,
    is_partly_unknown,
    nodes_of,
    nodes_of_step,
)
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.config_file import ConfigFile

_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.SCRIPT

#: of the shell, or of a template that somebody fills in: nobody knows here what will stand there
_FILLED_IN = re.compile(r"[$`{}<>%@]")
#: what torchrun counts itself, beside a backend that a package brings under a name of its own
_COUNTED = ("auto", "cpu", "gpu", "xpu")
_BACKEND = re.compile(r"[A-Za-z_]\w*")
#: names that such a package cannot have, because torch has them: c10/core/DeviceType.cpp
_TAKEN = frozenset(
    {
        "cuda",
        "fpga",
        "hip",
        "ideep",
        "ipu",
        "lazy",
        "maia",
        "meta",
        "mkldnn",
        "mps",
        "mtia",
        "opencl",
        "opengl",
    }
    | {"ve", "vulkan", "xla"}
)
_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen",
)  # fmt: skip
_NUMERALS = {word: str(number) for number, word in enumerate(_WORDS)}
_RENDEZVOUS = ("c10d", "etcd", "etcd-v2", "static")
#: of process groups, which the script chooses
_GROUPS = ("gloo", "mpi", "nccl", "ucc", "xccl")
_STARTS = ("fork", "forkserver", "spawn")
#: how alike a name must be to be meant: two letters turned, or one of four that is wrong
_ALIKE = 0.7
_ENDPOINT = re.compile(r"[^:]+:([^:]*)")
#: a variable by itself, with a value for where it is not set, or in a sum
_VARIABLE = re.compile(
    r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?::?[-=?][^${}`]*)?\}|\(\(\s*\$?\{?(?P<sum>\w+)\}?\s*\)\))"
)
#: what Slurm gives each task, and the batch shell as the first
_OF_TASKS = ("SLURM_NODEID", "SLURM_PROCID")
#: what counts the tasks of one node: where there is one, it is 0 on each
_OF_NODE = "SLURM_LOCALID"
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
    """Whether torchrun may take a text for processes: which backends are installed there is unknown."""
    count = _number(text)
    if count is not None:
        return count > 0
    known = _meant_processes(text) is None and text not in _TAKEN
    return text in _COUNTED or (known and _BACKEND.fullmatch(text) is not None)


def _meant_processes(text: str) -> str | None:
    """Return what somebody meant who writes a number in letters, a plural, capitals or torch's cuda."""
    if _meant_number(text) is not None:
        return _meant_number(text)
    singular = {"cuda": "gpu", "hip": "gpu"}.get(text.lower(), text.lower().removesuffix("s"))
    return singular if singular in _COUNTED and text not in _COUNTED else None


def _meant_number(text: str) -> str | None:
    return _NUMERALS.get(text.lower())


def _is_rendezvous(text: str) -> bool:
    """Whether a text may name a rendezvous: packages bring some of their own."""
    return text in _RENDEZVOUS or (_meant_rendezvous(text) is None and bool(text))


def _meant_rendezvous(text: str) -> str | None:
    if text.lower() in _GROUPS:
        return "c10d"
    return next(iter(get_close_matches(text.lower(), _RENDEZVOUS, n=1, cutoff=_ALIKE)), None)


def _meant_start(text: str) -> str | None:
    return next(iter(get_close_matches(text.lower(), _STARTS, n=1, cutoff=_ALIKE)), None)


def _is_interval(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False


def _is_natural(text: str) -> bool:
    return (_number(text) or 0) >= 0 and _number(text) is not None


def _is_port(text: str) -> bool:
    return _is_natural(text) and int(text) < _MOST_PORTS


def _port_of(file: ConfigFile) -> str | None:
    """Return the port of HOST:PORT where torch's own rendezvous meet; None for no port, and for IPv6."""
    stated = _ENDPOINT.fullmatch(str(file.get("torchrun.rdzv-endpoint") or ""))
    is_torchs = file.get("torchrun.rdzv-backend") in (None, "static", "c10d")
    return stated[1] if stated is not None and is_torchs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Value:
    """What stands behind one option."""

    is_right: Callable[[str], bool]
    #: completes "write --option with ..."
    wanted: str
    #: what somebody meant by a wrong one; None where nobody knows
    meant: Callable[[str], str | None] = _meant_number


_VALUES = {
    "nnodes": _Value(is_right=_is_nodes, wanted="a number of nodes, or MIN:MAX"),
    "nproc-per-node": _Value(is_right=_is_processes, wanted="1 or more, or gpu", meant=_meant_processes),
    "node-rank": _Value(is_right=_is_natural, wanted="0 for the first node, 1 for the second"),
    "master-port": _Value(is_right=_is_port, wanted="a port below 65536"),
    "rdzv-endpoint": _Value(is_right=_is_port, wanted="a port below 65536 behind the host"),
    "rdzv-backend": _Value(is_right=_is_rendezvous, wanted="c10d", meant=_meant_rendezvous),
    "max-restarts": _Value(is_right=_is_natural, wanted="0 or more"),
    "monitor-interval": _Value(is_right=_is_interval, wanted="seconds"),
    "start-method": _Value(is_right=_STARTS.__contains__, wanted=", ".join(_STARTS), meant=_meant_start),
}


@file_rule("PS662", Severity.ERROR, _FORMAT, source=_RUN)
def counts_are_what_torchrun_reads(file: ConfigFile) -> Iterator[Hit]:
    """Torchrun's counts must be counts, and its names ones that it knows.

    --nproc-per-node is 1 or more, auto, cpu, gpu, xpu, or the name of a backend that a package brings;
    --nnodes is a number, or MIN:MAX; --rdzv-backend is c10d, etcd, etcd-v2 or static, or a package's own.
    torchrun stops at anything else, on every node, when the job has waited in the queue.
    """
    for name, known in _VALUES.items():
        value = file.get(f"torchrun.{name}")
        judged = _port_of(file) if name == "rdzv-endpoint" else value
        if isinstance(judged, str) and not _FILLED_IN.search(judged) and not known.is_right(judged):
            meant = known.meant(judged)
            yield Hit(
                message=f"--{name} {value}" if value else f"--{name} is empty",
                fix=f"did you mean {meant}?" if meant else f"write --{name} with {known.wanted}",
                key=f"torchrun.{name}",
            )


def _same_everywhere(file: ConfigFile, rank: str, nodes: int) -> str | None:
    """Return why a number of a node is the same on all of them; None where it may be another on each."""
    found = _VARIABLE.fullmatch(rank)
    name = found and (found["bare"] or found["braced"] or found["sum"])
    if name == _OF_NODE:
        return "counts the tasks of one node, and is 0 for the first"
    if file.get("started.by") != "srun" or file.get("started.tasks") is not None:
        return None
    here = file.get("started.shell") is None
    if name in _OF_TASKS:
        return "is 0 in the batch shell" if here else None
    assigned = _VARIABLE.fullmatch(str(file.get(f"env.{name}") or "")) if name and here else None
    if assigned is not None and (assigned["bare"] or assigned["braced"] or assigned["sum"]) in _OF_TASKS:
        return "is set in the batch shell, to 0"
    started = nodes_of_step(file)
    alone = _number(rank) is not None and started is not None and started >= nodes
    return "is the same for all that srun starts" if alone else None


@file_rule("PS663", Severity.ERROR, _FORMAT, source=_RUN, covers=("PIT510",))
def static_nodes_have_numbers(file: ConfigFile) -> Iterator[Hit]:
    """The static rendezvous wants a number for every node.

    It is torchrun's default, also where --rdzv-endpoint says where to meet. Without --node-rank each node
    is number 0: each opens a store of its own, and waits there for the others. So it is where the batch
    shell puts in its own number, before srun starts anything, and where the number is that of a task on
    its node (SLURM_LOCALID), or simply the same.
    """
    nodes, stated, told = nodes_of(file), endpoint_of(file), str(file.get("torchrun.nnodes") or "")
    if stated is None or nodes is None or nodes < 2 or ":" in told or is_partly_unknown(file):
        return
    if file.get("started.by") == "script" and file.get("started.only") == "no":
        return  # another launch of the script may be of the other nodes
    is_static = file.get("torchrun.rdzv-backend") in (None, "static")
    rank, is_alone = file.get("torchrun.node-rank"), file.get("torchrun.standalone") is not None
    why = _same_everywhere(file, str(rank), nodes) if is_static and rank is not None else None
    if why is not None:
        yield Hit(
            message=f"--node-rank {rank} {why}: so on all {nodes} nodes",
            fix="write srun bash -c 'torchrun ... --node-rank $SLURM_NODEID ...', in single quotes, which "
            "each node reads itself; or --rdzv-backend c10d",
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
