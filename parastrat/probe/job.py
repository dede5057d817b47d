"""The size of the job that this process runs in, as its launcher or scheduler states it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import ProbeError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: torchrun's own setting (Kubeflow's too), then Slurm's; each is a number, torchrun's may be ``least:most``
_NODES = ("PET_NNODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")


def nodes_of_job(environ: Mapping[str, str]) -> int:
    """Return the number of nodes of this job; 1 outside of any.

    What was started (torchrun's WORLD_SIZE) outweighs what was asked for (PET_NNODES), and both outweigh
    what was allocated (Slurm). Of an elastic range the least counts: it is what the job can rely on.

    Raises:
        ProbeError: for a number that is none, or processes that do not fill their nodes.
    """
    if "WORLD_SIZE" in environ and "LOCAL_WORLD_SIZE" in environ:
        world, local = (_count(environ, name) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
        if world % local:
            raise ProbeError(
                f"WORLD_SIZE={world} is not a multiple of LOCAL_WORLD_SIZE={local}",
                hint="start the same number of processes on each node",
            )
        return world // local
    for name in _NODES:
        if environ.get(name):
            return _count(environ, name)
    return 1


def _count(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].partition(":")[0]
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ProbeError(
            f"{name}={environ[name]!r} is not a number of nodes or processes", hint=f"unset {name}"
        )
    return int(text)
