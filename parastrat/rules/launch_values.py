"""PS662: what stands behind launchers' options, as they read it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launchers import launcher_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.config_file import ConfigFile

_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.SCRIPT

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
#: numbers as words
NUMERALS = {word: str(number) for number, word in enumerate(_WORDS)}
_RENDEZVOUS = ("c10d", "etcd", "etcd-v2", "static")
#: of process groups, which the script chooses
_GROUPS = ("gloo", "mpi", "nccl", "ucc", "xccl")
_STARTS = ("fork", "forkserver", "spawn")
#: how alike a name must be to be meant: two letters turned, or one of four that is wrong
_ALIKE = 0.7
_ENDPOINT = re.compile(r"[^:]+:([^:]*)")
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
    return NUMERALS.get(text.lower())


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


def _is_count(text: str) -> bool:
    return (_number(text) or 0) > 0


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


def _is_number(text: str) -> bool:
    """Whether deepspeed takes a text for a number; those below 1 stand for all."""
    return _number(text) is not None


_COUNT = _Value(is_right=_is_count, wanted="1 or more")
_RANK = _Value(is_right=_is_natural, wanted="0 for the first node, 1 for the second")
_PORT = _Value(is_right=_is_port, wanted="a port below 65536")
_MEETING = _Value(is_right=_is_rendezvous, wanted="c10d", meant=_meant_rendezvous)
_RESTARTS = _Value(is_right=_is_natural, wanted="0 or more")
_INTERVAL = _Value(is_right=_is_interval, wanted="seconds")
_ALL_OR_MORE = _Value(is_right=_is_number, wanted="1 or more, or without it for all")

_VALUES = {
    "torchrun": {
        "nnodes": _Value(is_right=_is_nodes, wanted="a number of nodes, or MIN:MAX"),
        "nproc-per-node": _Value(
            is_right=_is_processes, wanted="1 or more, or gpu", meant=_meant_processes
        ),
        "node-rank": _RANK,
        "master-port": _PORT,
        "rdzv-endpoint": _Value(is_right=_is_port, wanted="a port below 65536 behind the host"),
        "rdzv-backend": _MEETING,
        "max-restarts": _RESTARTS,
        "monitor-interval": _INTERVAL,
        "start-method": _Value(
            is_right=_STARTS.__contains__, wanted=", ".join(_STARTS), meant=_meant_start
        ),
    },
    "accelerate": {
        "num_processes": _COUNT,
        "num_machines": _COUNT,
        "machine_rank": _RANK,
        "main_process_port": _PORT,
        "rdzv_backend": _MEETING,
        "max_restarts": _RESTARTS,
        "monitor_interval": _INTERVAL,
        "num_cpu_threads_per_process": _RESTARTS,
    },
    "deepspeed": {
        "num_nodes": _ALL_OR_MORE,
        "num_gpus": _ALL_OR_MORE,
        "node_rank": _RANK,
        "master_port": _PORT,
        "ssh_port": _PORT,
        "min_elastic_nodes": _ALL_OR_MORE,
        "max_elastic_nodes": _ALL_OR_MORE,
    },
}


@file_rule("PS662", Severity.ERROR, _FORMAT, source=_RUN)
def counts_are_what_launchers_read(file: ConfigFile) -> Iterator[Hit]:
    """Counts must be counts, and names ones that the launcher knows.

    torchrun's --nproc-per-node is 1 or more, auto, cpu, gpu, xpu, or the name of a backend that a package
    brings; its --nnodes is a number, or MIN:MAX; a rendezvous is c10d, etcd, etcd-v2 or static, or a
    package's own. accelerate and deepspeed take numbers alone. Launchers stop at anything else, on every
    node, when the job has waited in the queue.
    """
    launcher = launcher_of(file)
    for name, known in _VALUES[launcher.table].items():
        value = file.get(f"{launcher.table}.{name}")
        judged = _port_of(file) if name == "rdzv-endpoint" else value
        if isinstance(judged, str) and not FILLED_IN.search(judged) and not known.is_right(judged):
            meant = known.meant(judged)
            yield Hit(
                message=f"--{name} {value}" if value else f"--{name} is empty",
                fix=f"did you mean {meant}?" if meant else f"write --{name} with {known.wanted}",
                key=f"{launcher.table}.{name}",
            )
