"""PS561 to PS565: ranks that srun or mpirun starts, without torchrun between, and what they are told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    OF_TASKS,
    TASK_KEYS,
    count_of,
    gpus_of_node,
    is_of_one_host,
    variable_in,
)
from parastrat.rules.rank_facts import (
    OF_JOB,
    OF_RANK,
    exported,
    is_of_torch,
    nodes_of_ranks,
    ranks_of,
    ranks_of_node,
    starts_several,
)
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_ENV = "https://docs.pytorch.org/docs/stable/distributed.html#environment-variable-initialization"
_SRUN = "https://slurm.schedmd.com/srun.html"
_FORMAT = ConfigFormat.SCRIPT

#: what MPI's launchers give each process, and nobody has where they are called
_OF_MPI = ("OMPI_COMM_WORLD_", "PMI_", "PMIX_", "MPI_LOCALRANKID", "MV2_COMM_WORLD_")
_NODES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
_TASKS_OF_NODE = ("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
#: what may start processes of a job beside Python: a command, or a script that is not read here
_STARTS = re.compile(
    r"\b(?:srun|mpirun|mpiexec|prun|jsrun|aprun|flux|ray|ssh|pdsh|clush|parallel-ssh|horovodrun|bash|sh)\b"
    r"|\.(?:sh|sbatch|slurm)\b"
)
_SOURCED = re.compile(r"\s*(?:source|\.)\s")


@file_rule("PS561", Severity.ERROR, _FORMAT, source=_ENV, covers=("PIT510",))
def ranks_have_numbers_of_their_own(file: ConfigFile) -> Iterator[Hit]:
    """RANK and LOCAL_RANK are another number for each process.

    A batch script is the first task of its job: in it SLURM_PROCID and SLURM_LOCALID are 0, and what it
    exports all tasks get. Each then takes itself for rank 0 and waits for the others. What mpirun gives its
    processes is not set where it is called.
    """
    if not starts_several(file) or file.get("ranks.shell") is not None:
        return  # a shell of the step reads its own
    by_srun = file.get("ranks.by") == "srun"
    for name in OF_RANK:
        value = exported(file, name)
        variable = variable_in(value or "")
        if value is None:
            continue
        if by_srun and variable in (*OF_TASKS, "SLURM_LOCALID"):
            why = "which is 0 in the batch script"
        elif not by_srun and variable is not None and variable.startswith(_OF_MPI):
            why = "which is not set where mpirun is called"
        elif whole_number(value) is not None and (ranks_of(file) or 0) > 1:
            why = "for all of them"
        else:
            continue
        start = "srun" if by_srun else "mpirun"
        source = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID"}[name] if by_srun else variable
        mend = f"{start} bash -c 'export {name}=${source or '...'}; exec python ...'"
        yield Hit(
            message=f"each rank gets {name}={value}, {why}",
            fix=f"remove it, and write {mend}, in single quotes, or let the program read that variable",
            key=f"env.{name}",
        )


@file_rule("PS562", Severity.ERROR, _FORMAT, source=_ENV)
def world_size_is_all_ranks(file: ConfigFile) -> Iterator[Hit]:
    """WORLD_SIZE is the number of all processes of a job.

    init_process_group waits until as many have come. With more than are started it waits until its time is
    over, and with fewer it refuses the ranks beyond.
    """
    value, ranks = exported(file, "WORLD_SIZE"), ranks_of(file)
    if value is None or ranks is None or not starts_several(file) or file.get("ranks.shell") is not None:
        return
    variable, of_node, nodes = variable_in(value), ranks_of_node(file), nodes_of_ranks(file)
    said = whole_number(value)
    if variable in _NODES and nodes is not None:
        said = nodes
    elif variable in _TASKS_OF_NODE and of_node is not None:
        said = of_node
    if said is not None and said != ranks:
        by_srun = file.get("ranks.by") == "srun"
        yield Hit(
            message=f"WORLD_SIZE={value}{'' if value == str(said) else f' is {said}'}, and {ranks} ranks "
            "are started",
            fix="write export WORLD_SIZE=" + ("$SLURM_NTASKS" if by_srun else str(ranks)),
            key="env.WORLD_SIZE",
        )


@file_rule("PS563", Severity.ERROR, _FORMAT, source=_ENV)
def others_find_the_first_rank(file: ConfigFile) -> Iterator[Hit]:
    """MASTER_ADDR is a name of the host of rank 0 that the other hosts know.

    By localhost each of them finds itself, where nobody listens, and its ranks give up after minutes.
    """
    value = exported(file, "MASTER_ADDR")
    hosts = {host.partition(":")[0] for host in str(file.get("ranks.host") or "").split(",")}
    several = (nodes_of_ranks(file) or 0) > 1 or (len(hosts) > 1 and not any(map(is_of_one_host, hosts)))
    if value is not None and is_of_one_host(value) and several and file.get("ranks.shell") is None:
        by_srun = file.get("ranks.by") == "srun"
        first = (
            '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)' if by_srun else "the first host"
        )
        yield Hit(
            message=f"MASTER_ADDR={value} for ranks on several hosts",
            fix=f"write export MASTER_ADDR={first}",
            key="env.MASTER_ADDR",
        )


@file_rule("PS564", Severity.ERROR, _FORMAT, source=_SRUN, covers=("PIT511",))
def ranks_of_a_node_have_their_gpus(file: ConfigFile) -> Iterator[Hit]:
    """A node has no more ranks than GPUs.

    Two ranks on one GPU stop when NCCL starts (duplicate GPU detected), after the job has waited in the
    queue.
    """
    of_node, gpus = ranks_of_node(file), gpus_of_node(file)
    if of_node is None or gpus is None or not starts_several(file) or not is_of_torch(file):
        return
    if of_node > gpus:
        yield Hit(
            message=f"srun starts {of_node} ranks on a node with {counted(gpus, 'GPU')}",
            fix=f"write #SBATCH --ntasks-per-node={gpus}",
            key=next((key for key in TASK_KEYS if file.get(key) is not None), "ranks"),
        )


@file_rule("PS565", Severity.ERROR, _FORMAT, source=_SRUN, covers=("PIT509",))
def ranks_are_started(file: ConfigFile) -> Iterator[Hit]:
    """A job's tasks are started by srun.

    The batch script itself runs once, on the first node. A program that it starts is one process, which
    waits for the other ranks that nobody has started.
    """
    program, tasks = file.get("alone.program"), count_of(file, "sbatch.ntasks")
    nodes, of_node = count_of(file, "sbatch.nodes"), count_of(file, "sbatch.ntasks-per-node")
    ranks = tasks or (nodes or 1) * (of_node or 1)
    said = [name for name in OF_JOB if file.get(f"env.{name}") is not None]
    started = file.get("ranks") or file.get("started")
    lines = [str(line) for line in (file.get("text") or {}).values()]
    starts = any(_STARTS.search(line) for line in lines if not _SOURCED.match(line))
    if program is None or started or starts or ranks < 2 or not said:
        return
    yield Hit(
        message=f"python {program} runs once in a job of {counted(ranks, 'task')}",
        fix=f"write srun python {program}",
        key="alone",
    )
