"""Which of a job's nodes this is, and where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parastrat.errors import MismatchError, UsageError
from parastrat.launch import Launch
from parastrat.plan import Plan
from parastrat.runtime.launching.world import first_of_nodelist
from parastrat.units import counted

#: ports for jobs of Slurm are chosen by their id among these
_FIRST_PORT, _PORTS = 20_000, 10_000
_MAX_PORT = 65_535
#: torchrun's, where nobody names one
_USUAL_PORT = 29_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of a job as one of them sees them."""

    count: int
    #: HOST:PORT where the agents of all nodes meet; port 0 on a single node: any free one
    endpoint: str
    #: the same on all nodes of a job, different for jobs that share a host; None: any
    job: str | None = None
    #: number of this node; None if nobody said
    rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedNodes:
    """What the user's flags say."""

    count: int | None = None
    rank: int | None = None
    endpoint: str | None = None


def nodes_of(
    plan: Plan, launch: Launch, stated: StatedNodes, environment: Mapping[str, str], plan_path: Path
) -> Nodes:
    """Return the nodes that run a plan: as stated, else those of the pods or the Slurm step, else this one.

    Raises:
        UsageError: more nodes than one, and nothing says where they meet; or flags that do not go together.
        MismatchError: another number of nodes than planned.
    """
    if stated.count is None and stated.rank is None and stated.endpoint is None:
        pods = _pods(plan, launch, environment)
        if pods is not None:
            return pods
        if launch.nodes == 1:
            return Nodes(count=1, endpoint="localhost:0")
        return _slurm_nodes(plan, launch, environment, plan_path)
    count = launch.nodes if stated.count is None else stated.count
    check_started(plan, launch, count * launch.ranks_per_node)
    if stated.rank is not None and not 0 <= stated.rank < count:
        raise UsageError(
            f"--node-rank {stated.rank} of {counted(count, 'node')}",
            hint=f"give each node its own number from 0 to {count - 1}",
        )
    if stated.endpoint is None:
        if count == 1:
            return Nodes(count=1, endpoint="localhost:0")
        raise UsageError(
            f"--nnodes {count} without --rdzv-endpoint: the nodes would wait for each other forever",
            hint="give all nodes the same --rdzv-endpoint HOST:PORT: node 0 and a free port there",
        )
    _check_endpoint(stated.endpoint)
    return Nodes(count=count, endpoint=stated.endpoint, job="parastrat", rank=stated.rank)


def check_started(plan: Plan, launch: Launch, started: int) -> None:
    """Refuse to run a plan with another number of processes than it is for.

    Raises:
        MismatchError: naming both.
    """
    if started != plan.mesh.world_size:
        raise MismatchError(
            f"plan is for {plan.mesh.world_size} ranks ({plan.mesh}), {started} "
            f"{'was' if started == 1 else 'were'} started",
            hint="re-plan with --replan, or check it here with `parastrat verify`",
        )
    if launch.world_size != started:
        raise MismatchError(
            f"[launch] starts {launch.nodes} x {launch.ranks_per_node} ranks, the plan is for {started}",
            hint="make nodes x ranks_per_node in [launch] the plan's ranks, or re-plan with --replan",
        )


def _check_endpoint(endpoint: str) -> None:
    host, separator, port = endpoint.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(
            f"--rdzv-endpoint {endpoint} is not HOST:PORT",
            hint="such as node0:29500, the same on all nodes",
        )


def _pods(plan: Plan, launch: Launch, environment: Mapping[str, str]) -> Nodes | None:
    """Return the nodes that torchrun's own variables tell, as Kubeflow sets them in pods; None: none do.

    Raises:
        UsageError: they do not tell where the nodes meet, or are no numbers.
    """
    told = environment.get("PET_NNODES")
    if told is None or told == "1" == str(launch.nodes):
        return None
    if not told.isdecimal():
        raise UsageError(
            f"PET_NNODES={told}: a plan is for one number of nodes",
            hint=f"ask for {counted(launch.nodes, 'node')}",
        )
    check_started(plan, launch, int(told) * launch.ranks_per_node)
    host, rank = environment.get("PET_MASTER_ADDR"), environment.get("PET_NODE_RANK", "")
    endpoint = environment.get("PET_RDZV_ENDPOINT") or (
        f"{host}:{environment.get('PET_MASTER_PORT', _USUAL_PORT)}" if host else ""
    )
    if not endpoint or not rank.isdecimal():
        raise UsageError(
            f"PET_NNODES={told}, and PET_MASTER_ADDR or PET_NODE_RANK does not say where the nodes meet or "
            "which this is",
            hint=f"state --nnodes {told} --node-rank N --rdzv-endpoint HOST:PORT",
        )
    _check_endpoint(endpoint)
    return Nodes(
        count=int(told), endpoint=endpoint, job=environment.get("PET_RDZV_ID", "parastrat"), rank=int(rank)
    )


def _slurm_nodes(plan: Plan, launch: Launch, environment: Mapping[str, str], plan_path: Path) -> Nodes:
    """Return the nodes of the Slurm step that runs this process once on every node."""
    steps = environment.get("SLURM_STEP_NUM_NODES"), environment.get("SLURM_STEP_NUM_TASKS")
    allocated = environment.get("SLURM_NNODES", environment.get("SLURM_JOB_NUM_NODES"))
    if allocated is None:
        raise UsageError(
            f"the plan is for {launch.nodes} nodes, and this is one, in no allocation",
            hint=f"write a script for each node: parastrat emit {plan_path} --to torchrun; or a job, "
            "--to slurm or kubernetes; "
            f"or start it on each with --nnodes {launch.nodes} --node-rank N --rdzv-endpoint HOST:PORT",
        )
    check_started(plan, launch, int(allocated) * launch.ranks_per_node)
    if steps != (allocated, allocated):
        raise UsageError(
            f"this Slurm job has {allocated} nodes, and `parastrat run` was started on one of them",
            hint=f"srun --nodes={allocated} --ntasks-per-node=1 parastrat run ..., or write a job script: "
            f"parastrat emit {plan_path} --to slurm",
        )
    job = int(environment.get("SLURM_JOB_ID", "0"))
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_JOB_NODELIST", ""))
    return Nodes(
        count=launch.nodes,
        endpoint=f"{first_of_nodelist(hosts)}:{_FIRST_PORT + job % _PORTS}",
        job=f"slurm-{job}-{environment.get('SLURM_STEP_ID', '0')}",
        rank=int(environment["SLURM_NODEID"]) if "SLURM_NODEID" in environment else None,
    )
