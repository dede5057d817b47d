"""PS65x and PS66x: shell and batch scripts that start torchrun."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    count_of,
    counted,
    endpoint_of,
    gpus_of,
    is_partly_unknown,
    nodes_of,
)
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_FORMAT = ConfigFormat.SCRIPT

_LOOPBACK = ("localhost", "127.", "[::1]", "::1")
_FALLBACK = re.compile(r"\|\|\s*echo\s+[\"']?(localhost|127\.0\.0\.1)")


@file_rule("PS650", Severity.ERROR, _FORMAT, source=_TORCHRUN, covers=("PIT501",))
def nodes_know_where_to_meet(file: ConfigFile) -> Iterator[Hit]:
    """Torchrun on several nodes needs an address that all of them can reach.

    Without --rdzv-endpoint or --master-addr each node waits at its own door, and gives up after some
    minutes. --standalone means this node alone.
    """
    nodes = nodes_of(file)
    if file.get("torchrun") is None or nodes is None or nodes < 2 or is_partly_unknown(file):
        return
    if file.get("torchrun.standalone") is not None:
        if file.get("started.by") == "script" and not count_of(file, "torchrun.nnodes"):
            return  # it is meant for the node that the script runs on
        yield Hit(
            message=f"--standalone on {nodes} nodes: each trains alone",
            fix='write --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500" in its place',
            key="torchrun.standalone",
        )
    elif endpoint_of(file) is None:
        yield Hit(
            message=f"torchrun on {nodes} nodes, and no --rdzv-endpoint",
            fix='add --rdzv-backend c10d --rdzv-endpoint "$HEAD:29500", HEAD being the first node',
            key="torchrun",
        )


@file_rule("PS651", Severity.ERROR, _FORMAT, source=_TORCHRUN)
def nodes_meet_outside_themselves(file: ConfigFile) -> Iterator[Hit]:
    """The loopback address is another machine on each node.

    Every node finds itself there, and nobody else: each waits for the others until its time is over.
    """
    nodes, stated = nodes_of(file), endpoint_of(file)
    if stated is not None and nodes is not None and nodes > 1 and stated[1].startswith(_LOOPBACK):
        yield Hit(
            message=f"{nodes} nodes are to meet at {stated[1]}",
            fix='write the first node\'s name: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
            key=f"torchrun.{stated[0]}",
        )


@file_rule(
    "PS652",
    Severity.WARNING,
    _FORMAT,
    source="https://github.com/pytorch/pytorch/blob/main/torch/distributed/run.py",
    covers=("PIT503",),
)
def rendezvous_numbers_the_nodes(file: ConfigFile) -> Iterator[Hit]:
    """With the c10d rendezvous --node-rank and --master-addr are not read.

    It numbers the nodes itself, and meets at --rdzv-endpoint. What stands there misleads the reader.
    """
    if file.get("torchrun.rdzv-backend") != "c10d":
        return
    for name in ("node-rank", "master-addr", "master-port"):
        if file.get(f"torchrun.{name}") is not None:
            yield Hit(
                message=f"--{name} with --rdzv-backend c10d",
                fix=f"remove --{name}; --rdzv-endpoint HOST:PORT says where to meet",
                key=f"torchrun.{name}",
            )


@file_rule("PS653", Severity.ERROR, _FORMAT, source=_TORCHRUN, covers=("PIT502",))
def elastic_nodes_need_a_rendezvous(file: ConfigFile) -> Iterator[Hit]:
    """A range of nodes needs a rendezvous that can change.

    --nnodes MIN:MAX works with c10d or etcd; the static one, which is the default, takes one number.
    """
    low, colon, high = str(file.get("torchrun.nnodes") or "").partition(":")
    backend = file.get("torchrun.rdzv-backend")
    if colon and low != high and backend in (None, "static"):
        yield Hit(
            message=f"--nnodes {low}:{high} with the static rendezvous",
            fix="add --rdzv-backend c10d",
            key="torchrun.nnodes",
        )


@file_rule(
    "PS654",
    Severity.ERROR,
    _FORMAT,
    source="https://github.com/pytorch/pytorch/issues/73656",
    covers=("PIT508",),
)
def one_agent_a_node(file: ConfigFile) -> Iterator[Hit]:
    """Torchrun is started once a node; it starts the processes itself.

    With several tasks a node as many agents start, each with all processes, and several processes share
    every GPU.
    """
    tasks = count_of(file, "sbatch.ntasks-per-node")
    if file.get("started.tasks") is not None:
        return  # srun is told of others
    if file.get("started.by") == "srun" and tasks is not None and tasks > 1:
        yield Hit(
            message=f"srun starts torchrun {tasks} times on each node",
            fix="write #SBATCH --ntasks-per-node=1, and --nproc-per-node for the processes",
            key="sbatch.ntasks-per-node",
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

    torchrun without srun waits on the first node for the others, which nobody has started.
    """
    nodes = count_of(file, "sbatch.nodes")
    here = file.get("torchrun.standalone") is not None or count_of(file, "torchrun.nnodes") in (1, None)
    if (here and file.get("started.only") == "no") or is_partly_unknown(file):
        return  # something else runs on the others, or may
    if file.get("started.by") == "script" and nodes is not None and nodes > 1:
        yield Hit(
            message=f"torchrun without srun in a job of {nodes} nodes",
            fix="write srun torchrun ...",
            key="torchrun",
        )


@file_rule("PS656", Severity.WARNING, _FORMAT, source=_TORCHRUN)
def launcher_of_today(file: ConfigFile) -> Iterator[Hit]:
    """torch.distributed.launch is deprecated.

    It is torchrun with another way to tell the rank. torchrun sets LOCAL_RANK and passes no --local-rank
    to the script.
    """
    if file.get("started.module") == "torch.distributed.launch":
        yield Hit(
            message="python -m torch.distributed.launch",
            fix='write torchrun, and read os.environ["LOCAL_RANK"] in the script',
            key="started.module",
        )


@file_rule("PS657", Severity.ERROR, _FORMAT, source=_SBATCH, covers=("PIT511",))
def processes_have_their_gpus(file: ConfigFile) -> Iterator[Hit]:
    """A node cannot have more processes than GPUs.

    Two ranks on one GPU stop in NCCL's initialisation (duplicate GPU detected), after the job has waited in
    the queue.
    """
    processes = count_of(file, "torchrun.nproc-per-node")
    for key in ("sbatch.gpus-per-node", "sbatch.gres"):
        gpus = gpus_of(file, key)
        if gpus is not None and processes is not None and processes > gpus:
            yield Hit(
                message=f"{processes} processes on a node with {gpus} GPUs",
                fix=f"write --nproc-per-node {gpus}",
                key="torchrun.nproc-per-node",
            )


@file_rule("PS658", Severity.WARNING, _FORMAT, source=_TORCHRUN, covers=("PIT507",))
def no_way_back_to_the_loopback(file: ConfigFile) -> Iterator[Hit]:
    """A head node that is not found must stop the job.

    `|| echo localhost` hides that it was not found: on one node the job works, on several it waits.
    """
    for number, line in (file.get("text") or {}).items():
        if _FALLBACK.search(line):
            yield Hit(
                message="localhost stands in where the head node is not found",
                fix="let the script stop there: set -euo pipefail, and no ||",
                key=f"text.{number}",
            )


@file_rule("PS659", Severity.WARNING, _FORMAT, source=_SBATCH, covers=("PIT506",))
def head_is_one_node(file: ConfigFile) -> Iterator[Hit]:
    """The head's name must be the same on all nodes.

    $(hostname) and SLURM_LAUNCH_NODE_IPADDR differ from node to node, or name the node that submitted the
    job, as soon as they are read inside a step.
    """
    stated, nodes = endpoint_of(file), nodes_of(file)
    if stated is None or (nodes is not None and nodes < 2):
        return
    if re.search(r"\$\(hostname|`hostname|\$\{?HOSTNAME\b|SLURM_LAUNCH_NODE_IPADDR", stated[1]):
        yield Hit(
            message=f"the nodes are to meet at {stated[1]}",
            fix='take the first of: scontrol show hostnames "$SLURM_JOB_NODELIST"',
            key=f"torchrun.{stated[0]}",
        )


@file_rule("PS660", Severity.WARNING, _FORMAT, source=_SBATCH, covers=("PIT714",))
def tasks_have_their_cores(file: ConfigFile) -> Iterator[Hit]:
    """A task gets one core unless the job asks for more.

    torchrun's processes and their data loaders then share it, and the GPUs wait for data.
    """
    processes = count_of(file, "torchrun.nproc-per-node")
    if file.get("sbatch") is None or processes is None or processes < 2:
        return
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
    """Torchrun must be told of as many nodes as it is started on.

    Told of more it waits for nodes that nobody starts, until its time is over. Told of fewer it trains on
    those that come first, and the others wait for a place.
    """
    started, key = count_of(file, "started.nodes"), "torchrun.nnodes"
    started = started or count_of(file, "sbatch.nodes")
    told = count_of(file, key)
    if file.get("torchrun.node-rank") is not None or is_partly_unknown(file):
        return  # one step for each node
    if file.get("started.by") == "srun" and None not in (started, told) and started != told:
        yield Hit(
            message=f"srun starts torchrun on {counted(started)}, and --nnodes says {told}",
            fix=f'write --nnodes {started}, or "$SLURM_JOB_NUM_NODES"',
            key=key,
        )
