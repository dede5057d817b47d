"""PS526 to PS531: TrainJobs of Kubeflow Trainer, whose pods are torchrun's agents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import ConfigFormat, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.rule import file_rule
from parastrat.rules.trainjob_facts import (
    devices_of,
    nodes_of,
    processes_of,
    resources_of,
    runs_torch,
    words_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_TRAINER = "https://github.com/kubeflow/trainer/blob/8c0f505/pkg/runtime/framework/plugins/torch/torch.go"
_VARIABLES = (
    "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables"
)
_GPUS = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
_SPEC = "spec.trainer"
#: what Trainer's plugin for torch sets, constants.TorchRunReservedEnvNames
_RESERVED = frozenset(
    {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
)
#: what starts processes, or reads what Trainer says and does
_STARTING = re.compile(
    r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate|deepspeed|mpirun|mpiexec|parastrat|tune|ray|"
    r"horovodrun|lightning|torchx)\b"
)
_PYTHON = re.compile(r"(?:^|[\s/;&|])python[\d.]*\s+(?:-\S+\s+)*(?!-)\S+")
#: what reads the variables by itself
_READING = "PET_"


@file_rule("PS526", Severity.ERROR, ConfigFormat.TRAINJOB, source=_TRAINER, covers=("PIT515",))
def trainers_own_variables_are_its_own(file: ConfigFile) -> Iterator[Hit]:
    """A TrainJob sets none of the variables by which Trainer tells torchrun where the pods meet.

    Its plugin for torch sets PET_NNODES and its kin in every pod, by numNodes and numProcPerNode. Its
    webhook refuses jobs that state them.
    """
    stated = file.get(f"{_SPEC}.env")
    for index, entry in enumerate(stated if isinstance(stated, list) else ()):
        name = entry.get("name") if isinstance(entry, dict) else None
        if name in _RESERVED and runs_torch(file):
            fields = {"PET_NNODES": "numNodes", "PET_NPROC_PER_NODE": "numProcPerNode"}
            yield Hit(
                message=f"{name} is Trainer's own: it refuses jobs that set it",
                fix=f"write {fields[name]} instead" if name in fields else "remove it",
                key=f"{_SPEC}.env.{index}",
            )


@file_rule("PS527", Severity.ERROR, ConfigFormat.TRAINJOB, source=_TRAINER, covers=("PIT511",))
def no_more_processes_than_devices(file: ConfigFile) -> Iterator[Hit]:
    """A pod has a device for each of its processes.

    numProcPerNode is what torchrun starts in each pod, resourcesPerNode what it gets. A process without
    a device of its own ends with "invalid device ordinal", or shares one, which NCCL refuses.
    """
    processes, devices = processes_of(file), devices_of(file)
    if processes is not None and devices and processes > devices:
        yield Hit(
            message=f"{processes} processes in a pod with {devices} device{'' if devices == 1 else 's'}",
            fix=f"write numProcPerNode: {devices}, or ask for {processes}",
            key=f"{_SPEC}.numProcPerNode",
        )


@file_rule("PS528", Severity.WARNING, ConfigFormat.TRAINJOB, source=_TRAINER, covers=("PIT517",))
def pods_use_what_they_ask_for(file: ConfigFile) -> Iterator[Hit]:
    """A pod of several processes asks for devices, and uses all that it asks for.

    Where resourcesPerNode names no device, the pod has none, and its processes train on its CPUs. Devices
    beyond numProcPerNode are reserved, paid for and idle.
    """
    processes, devices = processes_of(file), devices_of(file)
    if processes is None or devices is None:
        return
    if devices == 0 and processes > 1 and runs_torch(file):
        yield Hit(
            message=f"{processes} processes in a pod without a device: they train on its CPUs",
            fix=f'ask for them under limits: nvidia.com/gpu: "{processes}"',
            key=f"{_SPEC}.resourcesPerNode",
        )
    if devices > processes:
        yield Hit(
            message=f"{processes} process{'' if processes == 1 else 'es'} in a pod with {devices} devices: "
            f"{devices - processes} {'is' if devices - processes == 1 else 'are'} idle",
            fix=f"write numProcPerNode: {devices}, or ask for {processes}",
            key=f"{_SPEC}.numProcPerNode",
        )


@file_rule("PS529", Severity.ERROR, ConfigFormat.TRAINJOB, source=_GPUS)
def devices_are_limits(file: ConfigFile) -> Iterator[Hit]:
    """Devices are asked for by limits, and by equal requests where those are stated.

    Kubernetes shares no device among pods: it takes a limit for the request too, and refuses a pod with
    requests alone, or with another number.
    """
    limits, requests = resources_of(file, "limits"), resources_of(file, "requests")
    for name, number in requests.items():
        if name not in limits or str(limits[name]) != str(number):
            stated = "no limit" if name not in limits else f"a limit of {limits[name]}"
            yield Hit(
                message=f"{number} of {name} requested with {stated}",
                fix=f'write {name}: "{number}" under limits',
                key=f"{_SPEC}.resourcesPerNode.requests.{name}",
            )


@file_rule("PS530", Severity.ERROR, ConfigFormat.TRAINJOB, source=_TRAINER)
def pods_train_together(file: ConfigFile) -> Iterator[Hit]:
    """The pods of a job are started as one: by a launcher, that is told of all of them.

    Trainer starts the same command in every pod, and tells by variables that torchrun reads how many there
    are. A script that Python runs by itself reads none, and torchrun --standalone or --nnodes=1 overrides
    them: each pod then trains a model of its own, on the same data, and nobody is told.
    """
    words, nodes, processes = words_of(file), nodes_of(file) or 1, processes_of(file) or 1
    if not words or not runs_torch(file) or nodes * processes == 1:
        return
    line = " ".join(words)
    if _STARTING.search(line) is None and _PYTHON.search(line) is not None and _READING not in line:
        yield Hit(
            message=f"python runs once in each of {nodes} pod{'' if nodes == 1 else 's'}, by itself: "
            f"{nodes * processes} processes were meant to train together",
            fix="write command: [torchrun], with the script among args",
            key=f"{_SPEC}.command",
        )
    told = re.search(r"--nnodes[= ](\d+)(?![\d:])", line)
    if nodes == 1 or "torchrun" not in line:
        return
    if "--standalone" in line:
        yield Hit(
            message=f"torchrun --standalone in {nodes} pods: each trains alone",
            fix="remove --standalone: Trainer says where the pods meet",
            key=f"{_SPEC}.command",
        )
    elif told is not None and whole_number(told[1]) != nodes:
        yield Hit(
            message=f"torchrun is told of {told[1]} nodes, and there are {nodes} pods",
            fix="remove --nnodes: Trainer says how many there are",
            key=f"{_SPEC}.command",
        )


@file_rule("PS531", Severity.ERROR, ConfigFormat.TRAINJOB, source=_VARIABLES)
def variables_and_words_are_text(file: ConfigFile) -> Iterator[Hit]:
    """The values of variables, the words of a command and its arguments are text.

    YAML makes numbers and switches of what stands without quotes, and Kubernetes refuses the job: it cannot
    unmarshal a number into a string.
    """
    stated = file.get(f"{_SPEC}.env")
    for index, entry in enumerate(stated if isinstance(stated, list) else ()):
        value = entry.get("value") if isinstance(entry, dict) else None
        if isinstance(value, bool | int | float):
            yield Hit(
                message=f"{entry.get('name')} is {_plain(value)}, without quotes, which is no text",
                fix=f'write value: "{_plain(value)}"',
                key=f"{_SPEC}.env.{index}",
            )
    for name in ("command", "args"):
        words = file.get(f"{_SPEC}.{name}")
        for index, word in enumerate(words if isinstance(words, list) else ()):
            if isinstance(word, bool | int | float):
                yield Hit(
                    message=f"{name} has {_plain(word)}, without quotes, which is no text",
                    fix=f'write "{_plain(word)}"',
                    key=f"{_SPEC}.{name}.{index}",
                )


def _plain(value: float) -> str:
    """Return a number or a switch as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
