"""PS535 and PS536: launches that run at once, and jobs that meet at one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.config_file import FILLED_IN, ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.launch_facts import host_and_port, is_of_one_host
from parastrat.rules.launchers import DEEPSPEED, launcher_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

_TORCHRUN = "https://docs.pytorch.org/docs/stable/elastic/run.html#stacked-single-node-multi-worker"
_RENDEZVOUS = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/elastic/rendezvous/etcd_rendezvous.py"
_FORMAT = ConfigFormat.SCRIPT

#: where deepspeed's processes meet unless they are told otherwise
_DEEPSPEEDS = "29500"
_SERVERS = ("etcd", "etcd-v2")
#: rendezvous that a launch opens a port for
_STORES = ("static", "c10d")


def _port(launch: Mapping[str, Any]) -> int | None:
    """Return the port that a launch opens here; None: unknown, or any."""
    if "options" in launch["started"] or launch["started"]["by"] != "script":
        return None
    if "deepspeed" in launch:
        return whole_number(launch["deepspeed"].get("master_port", _DEEPSPEEDS))
    options = launch.get("torchrun", {"standalone": ""})
    is_torchs = options.get("rdzv-backend", "static") in _STORES
    if "standalone" in options or options.get("nnodes", "1") != "1" or not is_torchs:
        return None
    endpoint = options.get("rdzv-endpoint", f"localhost:{options.get('master-port')}")
    return whole_number(host_and_port(endpoint)[1]) if is_of_one_host(endpoint) else None


@file_rule("PS535", Severity.ERROR, _FORMAT, source=_TORCHRUN, covers=("PIT505",))
def launches_at_once_have_their_own_ports(file: ConfigFile) -> Iterator[Hit]:
    """Launches that run at once on a node each have a port of their own.

    The processes of one meet there, and so the other cannot listen on it ("address already in use"), or
    takes part in its rendezvous. torchrun --standalone takes a free port, and so does torchrun on one
    node that is told of none; deepspeed takes 29500.
    """
    own = _port(file.table) if "started" in file.table else None
    # of port 0 each gets one that is free
    if not own or own not in map(_port, file.get("beside") or ()):
        return
    launcher = launcher_of(file)
    yield Hit(
        message=f"port {own} is of a launch above, which still runs in the background",
        fix=f"write --master_port {own + 1}"
        if launcher is DEEPSPEED
        else "write torchrun --standalone for both, which take free ports",
        key=launcher.table,
    )


@file_rule("PS536", Severity.WARNING, _FORMAT, source=_RENDEZVOUS, covers=("PIT521",))
def jobs_at_a_server_have_their_own_ids(file: ConfigFile) -> Iterator[Hit]:
    """Jobs that meet at an etcd server each have an id.

    It tells one job's nodes from another's, and without --rdzv-id all of them are called none. The server
    outlives the jobs: two at once take each other's nodes for theirs, and one behind another finds its
    rendezvous closed.
    """
    backend, endpoint = (str(file.get(f"torchrun.rdzv-{name}")) for name in ("backend", "endpoint"))
    known = file.get("started.options") is None and file.get("env.PET_RDZV_ID") is None
    # one that only the shell knows may be the job's own
    is_shared = not FILLED_IN.search(endpoint) and endpoint != "None" and not is_of_one_host(endpoint)
    if backend in _SERVERS and known and is_shared and file.get("torchrun.rdzv-id") in (None, "", "none"):
        yield Hit(
            message=f"--rdzv-backend {backend} without --rdzv-id: this job's id is none, as any other's",
            fix='add --rdzv-id "$SLURM_JOB_ID", or another id that is the same on all nodes of a job alone',
            key="torchrun.rdzv-backend",
        )
