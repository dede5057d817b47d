"""PS65x and PS66x: what Slurm makes of a batch script that starts a launcher."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    OF_TASKS,
    TASK_KEYS,
    agents_of,
    count_of,
    gpus_of,
    gpus_of_node,
    is_node_for_each_task,
    is_partly_unknown,
    nodes_of_step,
    processes_of,
    rank_of,
    told_nodes,
    variable_in,
)
from parastrat.rules.launchers import TORCHRUN, launcher_of, reaches_others
from parastrat.rules.rule import file_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_FORMAT = ConfigFormat.SCRIPT


@file_rule(
    "PS654",
    Severity.ERROR,
    _FORMAT,
    source="https://github.com/pytorch/pytorch/issues/73656",
    covers=("PIT508",),
)
def one_agent_a_node(file: ConfigFile) -> Iterator[Hit]:
    """A launcher is started once a node; it starts the processes itself.

    With several tasks a node as many agents start, each with all processes, and several processes share
    every GPU.
    """
    agents, launcher = agents_of(file), launcher_of(file)
    if agents is not None and agents > 1 and not is_node_for_each_task(file):
        yield Hit(
            message=f"srun starts {launcher.command} {agents} times on each node",
            fix="write #SBATCH --ntasks-per-node=1, no other number of tasks (-n, --ntasks), and "
            f"--{launcher.processes} for the processes",
            key=next(key for key in TASK_KEYS if file.get(key) is not None),
        )


@file_rule(
    "PS655",
    Severity.ERROR,
    _FORMAT,
    source="https://github.com/huggingface/accelerate/issues/2816",
    covers=("PIT509",),
)
def every_node_is_started(file: ConfigFile) -> Iterator[Hit]:
    """A batch script runs on the first node; srun starts what runs on all.

    A launcher without srun waits on the first node for the others, which nobody has started. deepspeed, and
    accelerate with DeepSpeed or MPI, start them through ssh.
    """
    nodes, launcher, told = count_of(file, "sbatch.nodes"), launcher_of(file), told_nodes(file)
    here = file.get("torchrun.standalone") is not None or told in (1, None)
    unknown = is_partly_unknown(file) and (launcher is TORCHRUN or here)
    if (here and file.get("started.only") == "no") or unknown or reaches_others(file) is not False:
        return  # something else runs on the others, or may
    if file.get("started.by") == "script" and nodes is not None and nodes > 1:
        yield Hit(
            message=f"{launcher.command} without srun in a job of {nodes} nodes",
            fix=f"write srun {launcher.command} ...",
            key=launcher.table,
        )


@file_rule("PS657", Severity.ERROR, _FORMAT, source=_SBATCH, covers=("PIT511",))
def processes_have_their_gpus(file: ConfigFile) -> Iterator[Hit]:
    """A node cannot have more processes than GPUs.

    Two ranks on one GPU stop in NCCL's initialisation (duplicate GPU detected), after the job has waited in
    the queue. --gpus counts those of all nodes together.
    """
    launcher, processes = launcher_of(file), processes_of(file)
    key = f"{launcher.table}.{launcher.processes}"
    if processes is None or file.get("accelerate.cpu") is not None:
        return
    # one that counts on all nodes is told of as many times the GPUs
    times = (told_nodes(file) or count_of(file, "sbatch.nodes") or 1) if launcher.in_all else 1
    gpus = gpus_of_node(file)
    if gpus is not None and processes > gpus:
        yield Hit(
            message=f"{processes} processes on a node with {gpus} GPUs",
            fix=f"write --{launcher.processes} {gpus * times}",
            key=key,
        )
    in_all, per_task = gpus_of(file, "sbatch.gpus"), gpus_of(file, "sbatch.gpus-per-task")
    # a step on some of the nodes may have most of the GPUs
    nodes = 1 if file.get("started.nodes") is not None else count_of(file, "sbatch.nodes") or 1
    if in_all is not None and file.get("sbatch.gpus-per-node") is None and processes * nodes > in_all:
        yield Hit(
            message=f"{processes} processes on each of {counted(nodes, 'node')} with {in_all} GPUs in all",
            fix=f"write #SBATCH --gpus-per-node={processes} for --gpus={in_all}",
            key=key,
        )
    if file.get("started.by") == "srun" and per_task is not None and processes > per_task:
        yield Hit(
            message=f"{processes} processes in a task with {counted(per_task, 'GPU')}",
            fix=f"write #SBATCH --gpus-per-task={processes}",
            key=key,
        )


@file_rule("PS660", Severity.WARNING, _FORMAT, source=_SBATCH, covers=("PIT714",))
def tasks_have_their_cores(file: ConfigFile) -> Iterator[Hit]:
    """A task gets one core unless the job asks for more.

    All processes of a launch and their data loaders then share it, and the GPUs wait for data.
    """
    processes = processes_of(file)
    if file.get("sbatch") is None or processes is None or processes < 2:
        return
    several = (count_of(file, key) or 1 for key in ("sbatch.ntasks-per-node", "sbatch.ntasks"))
    if file.get("started.by") == "script" and max(several) > 1:
        return  # what the batch shell starts has the cores of all tasks on its node
    cores = count_of(file, "sbatch.cpus-per-task")
    asked = ("cpus-per-task", "exclusive", "cpus-per-gpu", "mincpus")
    if cores is not None and cores < processes:
        yield Hit(
            message=f"{cores} cores for {processes} processes",
            fix=f"write #SBATCH --cpus-per-task={processes * 8}",
            key="sbatch.cpus-per-task",
        )
    if not any(file.get(f"sbatch.{name}") is not None for name in asked):
        yield Hit(
            message=f"{processes} processes in a task that asks for no cores",
            fix=f"add #SBATCH --cpus-per-task={processes * 8}, or --exclusive",
            key="sbatch",
        )


@file_rule("PS661", Severity.ERROR, _FORMAT, source=_TORCHRUN)
def as_many_nodes_as_started(file: ConfigFile) -> Iterator[Hit]:
    """A launcher must be told of as many nodes as it is started on.

    Told of more it waits for nodes that nobody starts, until its time is over. Told of fewer it trains on
    those that come first, and the others wait for a place.
    """
    started, launcher, told = nodes_of_step(file), launcher_of(file), told_nodes(file)
    rank = rank_of(file)
    one_step = rank is not None and variable_in(rank) not in OF_TASKS
    unknown = is_partly_unknown(file) and (launcher is TORCHRUN or told is None)
    if one_step or unknown or is_node_for_each_task(file) or reaches_others(file):
        return  # one step for each node, or a node for each task, or it is only started once
    if file.get("started.tasks") is not None or file.get("started.by") != "srun":
        return
    if None not in (started, told) and started != told:
        yield Hit(
            message=f"srun starts {launcher.command} on {counted(started, 'node')}, "
            f"and --{launcher.nodes} says {told}",
            fix=f'write --{launcher.nodes} {started}, or "$SLURM_JOB_NUM_NODES"',
            key=f"{launcher.table}.{launcher.nodes}",
        )


@file_rule("PS664", Severity.ERROR, _FORMAT, source=_SBATCH)
def lines_end_as_unix_ends_them(file: ConfigFile) -> Iterator[Hit]:
    """Scripts have Unix line breaks.

    Slurm refuses a batch script with those of DOS ("Batch script contains DOS line breaks"), and a shell
    takes the carriage return for a part of the last word.
    """
    if file.get("dos") is not None:
        yield Hit(
            message="lines end with DOS line breaks (\\r\\n)",
            fix="run dos2unix on it, or sed -i 's/\\r$//'",
            key="dos",
        )
