"""What a TrainJob says of its pods: their number, their processes, their devices, and what they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from parastrat.config_file import ConfigFile

#: Trainer's constants.ContainerTrainerPort
DEFAULT_PORT = 29400
#: names of devices that plugins hand out
_DEVICE = re.compile(r"(?:.+/(?:gpu|gaudi|mig-.+)|google\.com/tpu)$")


def nodes_of(file: ConfigFile) -> int | None:
    """Return the pods of a job; None where its runtime says how many."""
    return file.number("spec.trainer.numNodes")


def processes_of(file: ConfigFile) -> int | None:
    """Return the processes of a pod; None where its runtime or its devices say how many."""
    return file.number("spec.trainer.numProcPerNode")


def runs_torch(file: ConfigFile) -> bool:
    """Whether a job's runtime is one of torch, by its name; those by other names are unknown."""
    return "torch" in str(file.get("spec.runtimeRef.name") or "")


def words_of(file: ConfigFile) -> list[str]:
    """Return the command of a job with its arguments; empty where the runtime has the command."""
    command, arguments = file.get("spec.trainer.command"), file.get("spec.trainer.args")
    if not isinstance(command, list) or not command:
        return []
    return [str(word) for word in [*command, *(arguments if isinstance(arguments, list) else ())]]


def resources_of(file: ConfigFile, kind: str) -> Mapping[str, object]:
    """Return the ``limits`` or ``requests`` of a pod's devices, by their names."""
    stated = file.get(f"spec.trainer.resourcesPerNode.{kind}")
    if not isinstance(stated, dict):
        return {}
    return {str(name): value for name, value in stated.items() if _DEVICE.match(str(name))}


def devices_of(file: ConfigFile) -> int | None:
    """Return the devices of a pod; None where nothing is said of resources, or no number, or by claims."""
    asked = file.get("spec.trainer.resourcesPerNode")
    if not isinstance(asked, dict) or asked.get("claims"):
        return None
    stated = resources_of(file, "limits") or resources_of(file, "requests")
    counts = [whole_number(str(value)) for value in stated.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def is_patched_in_old_words(file: ConfigFile) -> bool:
    """Whether a job changes its pods in the words of release 2.0, which may say anything of them."""
    return any(file.get(f"spec.pod{what}Overrides") is not None for what in ("Spec", "Template"))


def shared_memory_of(file: ConfigFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what the patches of a job mount at /dev/shm: keys, and volumes; empty ones stand elsewhere."""
    for key, pod in _pods(file):
        volumes = {volume.get("name"): (place, volume) for place, volume in _entries(pod, "volumes", key)}
        for _, container in _entries(pod, "containers", key):
            for _, mount in _entries(container, "volumeMounts", key):
                if str(mount.get("mountPath")).rstrip("/") == "/dev/shm":  # noqa: S108 - not of this host
                    yield volumes.get(mount.get("name"), (key, {}))


def _pods(file: ConfigFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the pods that a job's patches change, with their keys."""
    inside = "trainingRuntimeSpec.template.spec"
    for key, patch in _entries(file.get("spec"), "runtimePatches", "spec"):
        jobs = _entries(_within(patch, inside), "replicatedJobs", f"{key}.{inside}")
        for place, job in jobs:
            pod = _within(job, "template.spec.template.spec")
            if isinstance(pod, dict):
                yield f"{place}.template.spec.template.spec", pod


def _within(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _entries(table: Any, name: str, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables of a list with their keys; nothing where there is no such list."""
    listed = table.get(name) if isinstance(table, dict) else None
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(entry, dict):
            yield f"{key}.{name}.{index}", entry
