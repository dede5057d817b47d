"""PS532 to PS534: what the pods of a TrainJob have of shared memory, and of devices to count."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule
from parastrat.rules.trainjob_facts import (
    devices_of,
    is_patched_in_old_words,
    processes_of,
    shared_memory_of,
    words_of,
)
from parastrat.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_GUIDE = "https://github.com/kubeflow/trainer/blob/8c0f505/docs/user-guides/megatron.md"
_VOLUMES = "https://kubernetes.io/docs/concepts/storage/volumes/#emptydir"
_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.TRAINJOB

#: Trainer's own runtime of torch, which mounts nothing
_RUNTIME = "torch-distributed"
#: of a container that nobody gives more
_USUAL = 64 * MIB
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_QUANTITY = re.compile(r"(\d{1,15})(Ki|Mi|Gi|k|M|G|)")
_COUNTING = re.compile(r"--nproc[-_]per[-_]node[= ](gpu)(?:\s|$)")


def _bytes(quantity: object) -> int | None:
    """Return what a quantity of Kubernetes counts; None for parts of one, and for larger units."""
    found = _QUANTITY.fullmatch(str(quantity))
    return None if found is None else int(found[1]) * _UNITS[found[2]]


@file_rule("PS532", Severity.INFO, _FORMAT, source=_GUIDE, covers=("PIT701",))
def processes_have_shared_memory(file: ConfigFile) -> Iterator[Hit]:
    """Pods of several processes have more shared memory than a container's 64 MiB.

    NCCL keeps buffers in /dev/shm for each of its communicators, and workers of data loaders pass batches
    through it. Where it is full, NCCL cannot extend its files, and workers end with a bus error. A
    memory-backed emptyDir that is mounted there gives more; Trainer's own runtime mounts none.
    """
    processes = processes_of(file) or devices_of(file) or 1
    is_trainers = file.get("spec.runtimeRef.name") == _RUNTIME
    unknown = is_patched_in_old_words(file) or any(True for _ in shared_memory_of(file))
    if is_trainers and processes > 1 and not unknown:
        yield Hit(
            message=f"{processes} processes share 64 MiB at /dev/shm, unless the runtime mounts more",
            fix="mount a volume with emptyDir: {medium: Memory} at /dev/shm, by runtimePatches",
            key="spec.trainer",
        )


@file_rule("PS533", Severity.WARNING, _FORMAT, source=_VOLUMES)
def shared_memory_is_memory(file: ConfigFile) -> Iterator[Hit]:
    """What is mounted at /dev/shm is memory, and more than a container has without it.

    An emptyDir is a folder on the node's disk unless its medium is Memory. With sizeLimit it is as large as
    that says.
    """
    for key, volume in shared_memory_of(file):
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


@file_rule("PS534", Severity.ERROR, _FORMAT, source=_RUN, covers=("PIT512",))
def gpus_that_are_counted_are_there(file: ConfigFile) -> Iterator[Hit]:
    """A pod whose GPUs torchrun counts has some.

    --nproc-per-node gpu starts a process for each GPU that CUDA finds, and stops where it finds none
    ("Cuda is not available."). A pod has the devices that resourcesPerNode asks for.
    """
    if devices_of(file) == 0 and _COUNTING.search(" ".join(words_of(file))) is not None:
        yield Hit(
            message="--nproc-per-node gpu in a pod that asks for no device",
            fix='ask for devices under limits, such as nvidia.com/gpu: "8", or write --nproc-per-node auto',
            key="spec.trainer.resourcesPerNode",
        )
