"""PS532 and PS533: what the pods of Kubeflow's jobs have of shared memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import JOBS
from parastrat.finding import Hit, Severity
from parastrat.rules.jobs import pods_of
from parastrat.rules.rule import file_rule
from parastrat.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_GUIDE = "https://github.com/kubeflow/trainer/blob/8c0f505/docs/user-guides/megatron.md"
_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"

#: of a container that nobody gives more
_USUAL = 64 * MIB
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|k|M|G|)")


def _bytes(quantity: object) -> int | None:
    """Return what a quantity of Kubernetes counts; None for parts of one, and for larger units."""
    found = _QUANTITY.fullmatch(str(quantity))
    return None if found is None else int(found[1]) * _UNITS[found[2]]


@file_rule("PS532", Severity.INFO, *JOBS, source=_GUIDE, covers=("PIT701",))
def processes_have_shared_memory(file: ConfigFile) -> Iterator[Hit]:
    """Pods of several processes have more shared memory than a container's 64 MiB.

    NCCL keeps buffers in /dev/shm for each of its communicators, and workers of data loaders pass batches
    through it. Where it is full, NCCL cannot extend its files, and workers end with a bus error. A
    memory-backed emptyDir that is mounted there gives more; Trainer's own runtime mounts none, and
    the Training Operator adds none.
    """
    for pods in pods_of(file):
        count, devices = pods.processes(), pods.devices()
        processes = (count and count.number) or devices or 1
        # what is not asked for is surely not there, and CPUs take no buffers of NCCL's
        is_without = pods.is_whole and not devices
        if processes > 1 and pods.is_memory_seen and not pods.shared_memory and not is_without:
            unless, how = (
                ("", "") if pods.is_whole else (", unless the runtime mounts more", ", by runtimePatches")
            )
            yield Hit(
                message=f"{processes} processes share 64 MiB at /dev/shm{unless}",
                fix=f"mount a volume with emptyDir: {{medium: Memory}} at /dev/shm{how}",
                key=pods.key,
            )


@file_rule("PS533", Severity.WARNING, *JOBS, source=_VOLUMES)
def shared_memory_is_memory(file: ConfigFile) -> Iterator[Hit]:
    """What is mounted at /dev/shm is memory, and more than a container has without it.

    An emptyDir is a folder on the node's disk unless its medium is Memory. With sizeLimit it is as large as
    that says.
    """
    for key, volume in (found for pods in pods_of(file) for found in pods.shared_memory):
        source = volume.get("emptyDir")
        if not isinstance(source, dict) and "emptyDir" not in volume:
            continue
        stated = source if isinstance(source, dict) else {}
        limit = _bytes(stated.get("sizeLimit"))
        if stated.get("medium") != "Memory":
            yield Hit(
                message=f"the volume {volume.get('name')} at /dev/shm is on the node's disk",
                fix="write emptyDir: {medium: Memory}",
                key=key,
            )
        elif limit is not None and limit <= _USUAL:
            yield Hit(
                message=f"the volume {volume.get('name')} at /dev/shm has {stated['sizeLimit']}, "
                "no more than a container has without it",
                fix="write a larger sizeLimit, or leave it to the memory of the pod",
                key=key,
            )
