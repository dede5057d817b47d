"""PS65x: how a launch's nodes meet; what Slurm makes of a batch script is in ``batch_script``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import (
    count_of,
    endpoint_of,
    is_of_one_host,
    is_partly_unknown,
    is_static,
    nodes_of,
    rank_of,
)
from parastrat.rules.launchers import launcher_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html"
_SBATCH = "https://slurm.schedmd.com/sbatch.html"
_FORMAT = ConfigFormat.SCRIPT

#: what each node calls itself, and what may call the node that submitted the job
_OWN_NAME = re.compile(r"\$\(hostname|`hostname|\$\{?HOSTNAME\b")
_SUBMITTER = re.compile(r"SLURM_LAUNCH_NODE_IPADDR")
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

    Every node finds itself there, and nobody else: each waits for the others until its time is over. The
    line of node 0 alone may say so, where the static rendezvous numbers them: it is the one that is met.
    """
    nodes, stated = nodes_of(file), endpoint_of(file)
    if file.get("started.by") == "script" and is_static(file) and rank_of(file) == "0":
        return
    if stated is not None and nodes is not None and nodes > 1 and is_of_one_host(stated[1]):
        yield Hit(
            message=f"{nodes} nodes are to meet at {stated[1]}",
            fix='write the first node\'s name: scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1',
            key=f"{launcher_of(file).table}.{stated[0]}",
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

    $(hostname) differs from node to node where each node asks: in a script that all of them run, or in a
    shell of the step. The batch shell asks the first node; but SLURM_LAUNCH_NODE_IPADDR, which in a step
    is where srun runs, names there the node that submitted the job.
    """
    stated, nodes = endpoint_of(file), nodes_of(file)
    if stated is None or (nodes is not None and nodes < 2):
        return
    by, in_step = file.get("started.by"), file.get("started.shell") is not None
    everywhere = in_step if by == "srun" else by == "script" and file.get("sbatch") is None
    wrong = _OWN_NAME.search(stated[1]) if everywhere else _SUBMITTER.search(stated[1]) and not in_step
    if wrong:
        yield Hit(
            message=f"the nodes are to meet at {stated[1]}",
            fix='take the first of: scontrol show hostnames "$SLURM_JOB_NODELIST"',
            key=f"{launcher_of(file).table}.{stated[0]}",
        )
