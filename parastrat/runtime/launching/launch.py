"""``parastrat run``: the ranks of a plan on this node, through torch's elastic agent.

Each rank is the user's script in a process of its own that dies with the agent. What rank 0 prints is shown
as it comes, the others' output goes to files. Of several ranks that fail, the first one's traceback is what
the user sees.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from parastrat.errors import LaunchError, MismatchError, PlanFileError, UsageError
from parastrat.failures import known_failure
from parastrat.launch import Launch
from parastrat.parse import Parsed
from parastrat.plan import Backend, Plan
from parastrat.rules.backend import decide_backend
from parastrat.runtime.environment import environment
from parastrat.runtime.launching import worker
from parastrat.runtime.launching.allocation import Nodes, StatedNodes, check_started, nodes_of
from parastrat.runtime.launching.job_logs import (
    Watch,
    first_to_fail,
    last_error,
    last_words,
    stderr_log,
    watched,
)
from parastrat.runtime.silence import silenced
from parastrat.runtime.stated import PLAN_VARIABLE

#: the ranks' store apart from the agents': a restart then does not find the dead one's keys
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
_THREADS = "OMP_NUM_THREADS"
#: how long a stopped rank may clean up before it is killed
_SHUTDOWN_S = 5
_ELASTIC_LOGGERS = "torch.distributed.elastic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What this node runs."""

    launch: Launch
    nodes: Nodes
    #: script and its arguments
    command: tuple[str, ...]
    plan_path: Path
    max_restarts: int


def run_plan(  # noqa: PLR0913  (each keyword is a flag of the command)
    parsed: Parsed,
    script: Path,
    arguments: Sequence[str],
    *,
    plan_path: Path,
    nnodes: int | None = None,
    node_rank: int | None = None,
    rdzv_endpoint: str | None = None,
    max_restarts: int = 0,
) -> int:
    """Run this node's ranks of a plan until the script ends; return 0.

    Args:
        parsed: what ``plan_path`` says.
        script: Python file that every rank runs.
        arguments: the script's own.
        plan_path: what the ranks find in ``$PARASTRAT_PLAN``.
        nnodes: nodes of the job, where no allocation says it.
        node_rank: number of this node.
        rdzv_endpoint: HOST:PORT where the nodes meet.
        max_restarts: how often all ranks are started again after one failed.

    Raises:
        PlanFileError: the file has no plan, or does not say how to launch it.
        UsageError: no such script, or several nodes and nothing says where they meet.
        MismatchError: the plan is for another number of ranks than would be started.
        LaunchError: a rank failed, the nodes did not meet, or the backend cannot be launched.
    """
    if parsed.plan is None or parsed.launch is None:
        missing = "[plan]" if parsed.plan is None else "[launch]"
        raise PlanFileError(
            f"{plan_path} has no {missing}",
            hint="write a whole file: parastrat recommend MODEL -o plan.toml, or parastrat estimate ... -o",
        )
    if not script.is_file():
        raise UsageError(f"there is no script {script}", hint="name the file that trains the model")
    plan, launch = parsed.plan, parsed.launch
    _check_backend(parsed, plan, launch, plan_path)
    stated = StatedNodes(count=nnodes, rank=node_rank, endpoint=rdzv_endpoint)
    nodes = nodes_of(plan, launch, stated, os.environ, plan_path)
    check_started(plan, launch, nodes.count * launch.ranks_per_node)
    _check_devices(plan, launch)
    _launched(
        Job(
            launch=launch,
            nodes=nodes,
            command=(str(script), *arguments),
            plan_path=plan_path.resolve(),
            max_restarts=max_restarts,
        )
    )
    return 0


def _check_backend(parsed: Parsed, plan: Plan, launch: Launch, plan_path: Path) -> None:
    """Refuse MPI, which torch's wheels lack.

    Raises:
        LaunchError: with what is left.
    """
    if plan.backend is not Backend.MPI and "mpi" not in launch.backend:
        return
    if torch.distributed.is_mpi_available():
        raise LaunchError(
            "the plan's backend is mpi, whose processes mpirun starts",
            hint=f"parastrat emit {plan_path} --to mpirun writes a script that does",
        )
    options = decide_backend(parsed.hardware).options if parsed.hardware is not None else ()
    left = options or (
        "enable IP over InfiniBand, then use Gloo over it",
        "use Gloo over the Ethernet interface, at its bandwidth",
        "build torch from source on a host that has MPI (USE_MPI=1)",
    )
    numbered = "; ".join(f"({number}) {option}" for number, option in enumerate(left, 1))
    raise LaunchError("the plan's backend is mpi, and this torch was built without it", hint=numbered)


def _check_devices(plan: Plan, launch: Launch) -> None:
    """Refuse to start more ranks than this node has devices.

    Raises:
        MismatchError: naming both.
    """
    if launch.device == "cpu":
        return
    kind = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    count = torch.accelerator.device_count() if kind is not None and kind.type == launch.device else 0
    if count < launch.ranks_per_node:
        raise MismatchError(
            f"plan is for {plan.mesh.world_size} ranks ({plan.mesh}), {launch.ranks_per_node} on a node; "
            f"this one has {count} {launch.device} devices",
            hint="re-plan with --replan, or run it on the nodes that it was made for",
        )


def _launched(job: Job) -> None:
    logs = Path(tempfile.mkdtemp(prefix="parastrat-run-"))
    launch = elastic_launch(_config(job, logs), sys.executable)
    start = ("-I", worker.__file__, str(logs), str(os.getpid()), *job.command)
    try:
        with (
            environment(_variables(job)),
            _quiet_agent(),
            watched(logs, job.max_restarts) as watch,
        ):
            launch(*start)
    except ChildFailedError as error:
        raise _failure(error, job, watch) from error
    except (SignalException, KeyboardInterrupt) as error:
        number = error.sigval if isinstance(error, SignalException) else signal.SIGINT
        raise LaunchError(
            f"stopped by {signal.Signals(number).name}; all ranks of this node were stopped",
            hint=f"what they printed is in {logs}",
        ) from error
    except RendezvousError as error:
        raise LaunchError(
            f"the {job.nodes.count} nodes did not meet at {job.nodes.endpoint}: {error}",
            hint="start the same command on every node; check that the first one's port is reachable",
        ) from error
    shutil.rmtree(logs)


def _config(job: Job, logs: Path) -> LaunchConfig:
    rendezvous = {} if job.nodes.rank is None else {"is_host": job.nodes.rank == 0}
    # torch 2.11 cannot be told: its agents wait 30 s
    told = "shutdown_timeout" in {field.name for field in fields(LaunchConfig)}
    patience: dict[str, Any] = {"shutdown_timeout": _SHUTDOWN_S} if told else {}
    return LaunchConfig(
        min_nodes=job.nodes.count,
        max_nodes=job.nodes.count,
        nproc_per_node=job.launch.ranks_per_node,
        run_id=job.nodes.job or uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint=job.nodes.endpoint,
        rdzv_configs=rendezvous,
        max_restarts=job.max_restarts,
        logs_specs=DefaultLogsSpecs(log_dir=str(logs / "agent")),
        **patience,
    )


def _variables(job: Job) -> dict[str, str]:
    """Return what every rank needs in its environment; the plan's word goes before the shell's."""
    variables = {**job.launch.env, PLAN_VARIABLE: str(job.plan_path), _OWN_STORE: "1"}
    if _THREADS not in variables and _THREADS not in os.environ:
        # left alone, every rank would start as many threads as there are cores
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        variables[_THREADS] = str(max(1, cores // job.launch.ranks_per_node))
    return variables


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """Silence the agent's own log unless LOGLEVEL asks for it: what failed is told in one message."""
    if "LOGLEVEL" in os.environ:
        yield
        return
    with silenced(_ELASTIC_LOGGERS):
        yield


def _failure(error: ChildFailedError, job: Job, watch: Watch) -> LaunchError:
    """Show the first failing rank's traceback; return the error that names it."""
    logs = watch.root
    failed = {rank: failure.exitcode for rank, failure in error.failures.items()}
    restart = max(
        (
            number
            for number in range(job.max_restarts + 1)
            if any(stderr_log(logs, rank, number).exists() for rank in failed)
        ),
        default=0,
    )
    rank = first_to_fail(failed, watch, restart)
    log = stderr_log(logs, rank, restart)
    words = last_words(log)
    # rank 0's may have been shown while it ran
    if words and watch.shown.get(log, 0) < log.stat().st_size:
        sys.stderr.write(f"{words}\n")
        sys.stderr.flush()
    how = f"exit code {failed[rank]}"
    if failed[rank] < 0:
        how = f"killed by {signal.Signals(-failed[rank]).name}"
    named = last_error(words)
    hint = f"its output, and the other ranks', is in {logs}"
    known = known_failure("Bus error" if failed[rank] == -signal.SIGBUS else words)
    if failed[rank] == -signal.SIGKILL:
        hint = f"the kernel kills a process when memory runs out (see dmesg); {hint}"
    elif known is not None:
        hint = f"{known.means}: {known.change}; {hint}"
    return LaunchError(
        f"rank {rank} of {job.launch.world_size} failed{' first' if len(failed) > 1 else ''} ({how})"
        f"{': ' + named if named else ''}",
        hint=hint,
    )
