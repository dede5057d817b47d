"""What a TrainJob says of its pods: their number, their processes, their devices, and what they run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    """Return the devices of a pod; None where nothing is said of resources, or no number."""
    if not isinstance(file.get("spec.trainer.resourcesPerNode"), dict):
        return None
    stated = resources_of(file, "limits") or resources_of(file, "requests")
    counts = [whole_number(str(value)) for value in stated.values()]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
