"""What the rules of launch scripts read of one launch: its nodes, its GPUs, and what is unknown of it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import whole_number
from parastrat.rules.launchers import ACCELERATE, DEEPSPEED, TORCHRUN, launcher_of

if TYPE_CHECKING:
    from parastrat.config_file import ConfigFile

#: ``gpu:a100:4``, ``gpu:4`` or ``gpu``, of which there is one, in a list (``hpu`` are Gaudis, as some sites
#: name them); and ``a100:4`` or ``4``
_GRES = re.compile(r"(?:^|,)[gh]pu(?::[A-Za-z][\w-]*)?(?::(\d{1,6}))?(?=[,(]|$)")
_PER_NODE = re.compile(r"(?:[A-Za-z][\w-]*:)?(\d{1,6})$")

#: a variable by itself, with a value for where it is not set, or in a sum
_VARIABLE = re.compile(
    r"\$(?:(?P<bare>\w+)|\{(?P<braced>\w+)(?::?[-=?][^${}`]*)?\}|\(\(\s*\$?\{?(?P<sum>\w+)\}?\s*\)\))"
)
#: what Slurm gives each task, and the batch shell as the first
OF_TASKS = ("SLURM_NODEID", "SLURM_PROCID")


def variable_in(text: str) -> str | None:
    """Return the variable that a text is, alone; None for any other."""
    found = _VARIABLE.fullmatch(text)
    return found and (found["bare"] or found["braced"] or found["sum"])


def count_of(file: ConfigFile, key: str) -> int | None:
    """Return a stated whole number; None for what only the shell knows."""
    return whole_number(file.get(key))


def nodes_of(file: ConfigFile) -> int | None:
    """Return the nodes of a launch: what it is told, else those that it is started on; None if unknown.

    A launch that no srun starts on other nodes has the one that its script runs on, unless it is the only
    one, and was meant for all.
    """
    told = told_nodes(file)
    if told is not None or is_partly_unknown(file) or launcher_of(file) is DEEPSPEED:
        return told
    if file.get("started.by") == "script" and file.get("started.only") == "no":
        return None
    return nodes_of_step(file)


def told_nodes(file: ConfigFile) -> int | None:
    """Return the nodes that a launcher is told of: by option, or by deepspeed's file of hosts."""
    launcher, hosts = launcher_of(file), file.get("hosts")
    stated = count_of(file, f"{launcher.table}.{launcher.nodes}")
    is_filtered = any(file.get(f"deepspeed.{name}") is not None for name in ("include", "exclude"))
    if launcher is DEEPSPEED and not stated and hosts and not is_filtered:
        return len(hosts)
    return stated


def processes_of(file: ConfigFile) -> int | None:
    """Return the processes on a node, or the fewest that one of them has; None if unknown."""
    launcher = launcher_of(file)
    stated = count_of(file, f"{launcher.table}.{launcher.processes}")
    if stated is None or not launcher.in_all:
        return stated or None
    # machines are no more than the job has nodes
    nodes = told_nodes(file) or count_of(file, "sbatch.nodes") or _one_node(file)
    return None if not nodes else -(-stated // nodes)


def world_of(file: ConfigFile) -> int | None:
    """Return the processes of a launch on all its nodes; None if unknown."""
    launcher, nodes, processes = launcher_of(file), told_nodes(file), processes_of(file)
    if launcher is ACCELERATE:
        return count_of(file, "accelerate.num_processes")
    alone = launcher is TORCHRUN and file.get("torchrun.nnodes") is None and not is_partly_unknown(file)
    if alone and (nodes_of(file) or 1) > 1:
        return None  # each of several trains alone, or is to be told of the others
    nodes = 1 if alone or file.get("torchrun.standalone") is not None else nodes
    return None if nodes is None or processes is None else nodes * processes


def _one_node(file: ConfigFile) -> int | None:
    """Return 1 where Slurm is asked for no number of nodes or tasks; None where it decides."""
    asked = ("nodes", "ntasks", "ntasks-per-node", "nodelist")
    is_one = file.get("sbatch") is not None and not any(file.get(f"sbatch.{name}") for name in asked)
    return 1 if is_one else None


def rank_of(file: ConfigFile) -> str | None:
    """Return the number of a node as it is written; None where it is not stated."""
    launcher = launcher_of(file)
    value = file.get(f"{launcher.table}.{launcher.rank}")
    return value if isinstance(value, str) else None


def is_static(file: ConfigFile) -> bool:
    """Whether nodes are numbered by who starts them, and not by their rendezvous."""
    backend = file.get("torchrun.rdzv-backend") or file.get("accelerate.rdzv_backend")
    return backend in (None, "static")


def is_partly_unknown(file: ConfigFile) -> bool:
    """Whether some of what a launcher is told stands in the shell's variables, or in a file not at hand."""
    environment = file.get("env") or {}
    in_file = launcher_of(file) is ACCELERATE and file.get("started.config") != "read"
    return (
        in_file
        or file.get("started.options") is not None
        or any(name.startswith("PET_") for name in environment)
    )


#: what says how many tasks run, the nearest to the command first
TASK_KEYS = ("started.ntasks-per-node", "started.ntasks", "sbatch.ntasks-per-node", "sbatch.ntasks")


def nodes_of_step(file: ConfigFile) -> int | None:
    """Return the nodes that srun, or the job, starts a launch on; None if unknown."""
    if file.get("started.nodes") is not None or file.get("started.tasks") == "unknown":
        return count_of(file, "started.nodes")
    nodes = count_of(file, "sbatch.nodes")
    if file.get("started.ntasks") is None or nodes is None:
        return nodes
    tasks = count_of(file, "started.ntasks")
    return None if tasks is None else min(tasks, nodes)


def agents_of(file: ConfigFile) -> int | None:
    """Return how often srun starts a launcher on a node; None if unknown, or if srun does not."""
    if file.get("started.by") != "srun" or file.get("started.tasks") is not None:
        return None  # it is told of chosen nodes, or of what a variable holds
    own = [file.get(key) is not None for key in TASK_KEYS[:2]]
    a_node, in_all = TASK_KEYS[:2] if any(own) else TASK_KEYS[2:]
    if own == [True, False] and file.get("sbatch.ntasks") is not None:
        return None  # versions of Slurm differ in what they make of that beside the job's number of tasks
    nodes, tasks = nodes_of_step(file), count_of(file, in_all)
    if file.get(in_all) is None or (nodes is None and tasks is not None):
        return count_of(file, a_node)
    # of both numbers the one of all tasks holds
    return None if tasks is None or not nodes else -(-tasks // nodes)


def is_node_for_each_task(file: ConfigFile) -> bool:
    """Whether a launcher is told of each task as a node, and each has GPUs of its own."""
    agents, nodes = agents_of(file), nodes_of_step(file)
    told, has_own = told_nodes(file), file.get("sbatch.gpus-per-task") is not None
    return agents is not None and nodes is not None and has_own and told == agents * nodes


def endpoint_of(file: ConfigFile) -> tuple[str, str] | None:
    """Return the option that says where the nodes meet, with its value."""
    launcher = launcher_of(file)
    for name in launcher.addresses:
        value = file.get(f"{launcher.table}.{name}")
        if isinstance(value, str) and value:
            return name, value
    return None


def host_and_port(address: str) -> tuple[str, str]:
    """Return the parts of a host's name or address, with a port or without (empty)."""
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        return host, port.removeprefix(":")
    host, _, port = address.partition(":")
    # without brackets an address of IPv6 has no port
    return (address, "") if ":" in port else (host, port)


def is_of_one_host(address: str) -> bool:
    """Whether a host's name or address, with or without a port, means on each host that one itself."""
    host, _ = host_and_port(address)
    return host.partition(".")[0] in ("localhost", "127") or host in ("0.0.0.0", "::1")  # noqa: S104


def gpus_of_node(file: ConfigFile) -> int | None:
    """Return the GPUs that a job asks for on a node; None if unknown."""
    several = [gpus_of(file, f"sbatch.{name}") for name in ("gpus-per-node", "gres")]
    return min((gpus for gpus in several if gpus is not None), default=None)


def gpus_of(file: ConfigFile, key: str) -> int | None:
    """Return the GPUs that ``sbatch.gpus``, one of its kind, or ``sbatch.gres`` asks for; else None."""
    stated = (_GRES if key == "sbatch.gres" else _PER_NODE).search(str(file.get(key) or ""))
    return None if stated is None else int(stated[1] or 1)
