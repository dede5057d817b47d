"""PS527 to PS531, PS534, and PS560: the pods of Kubeflow's jobs, in which torchrun's agents run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, JOBS, whole_number
from parastrat.finding import Hit, Severity
from parastrat.rules.jobs import pods_of
from parastrat.rules.pod_facts import entries, label_of
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile
    from parastrat.rules.pod_facts import Pods

_TRAINER = "https://github.com/kubeflow/trainer/blob/8c0f505/pkg/runtime/framework/plugins/torch/torch.go"
_VARIABLES = (
    "https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#environment-variables"
)
_GPUS = "https://kubernetes.io/docs/tasks/manage-gpus/scheduling-gpus/"
_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_NAMES = "https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#rfc-1035-label-names"
_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")


@file_rule("PS560", Severity.ERROR, *JOBS, source=_NAMES)
def jobs_have_names_of_hosts(file: ConfigFile) -> Iterator[Hit]:
    """A job's name is one that hosts can have: small letters, digits and hyphens, a letter first.

    Its pods find each other by names that are made of it. Kubernetes, or the operator's webhook, refuses
    another, and one of more than 63 characters.
    """
    name = file.get("metadata.name")
    if isinstance(name, str) and not FILLED_IN.search(name) and _NAME.fullmatch(name) is None:
        meant = label_of(name, 63)
        yield Hit(
            message=f'no job can be called "{name}"',
            fix=f"write name: {meant}"
            if _NAME.fullmatch(meant)
            else "write small letters, digits and hyphens, at most 63, a letter first",
            key="metadata.name",
        )


@file_rule("PS527", Severity.ERROR, *JOBS, source=_TRAINER, covers=("PIT511",))
def no_more_processes_than_devices(file: ConfigFile) -> Iterator[Hit]:
    """A pod has a device for each of its processes.

    numProcPerNode of a TrainJob, nprocPerNode of a PyTorchJob, or torchrun's own --nproc-per-node is what
    torchrun starts in each pod; its resources are what it gets. A process without a device of its own ends
    with "invalid device ordinal", or shares one, which NCCL refuses.
    """
    for pods in pods_of(file):
        count, devices = pods.processes(), pods.devices()
        processes = None if count is None else count.number
        if count is not None and processes is not None and devices and processes > devices:
            yield Hit(
                message=f"{processes} processes in a pod with {devices} "
                f"device{'' if devices == 1 else 's'}",
                fix=f"write {count.written.format(devices)}, or ask for {processes}",
                key=count.key,
            )


@file_rule("PS528", Severity.WARNING, *JOBS, source=_TRAINER, covers=("PIT517",))
def pods_use_what_they_ask_for(file: ConfigFile) -> Iterator[Hit]:
    """A pod of several processes asks for devices, and uses all that it asks for.

    Where its resources name no device, the pod has none, and its processes train on its CPUs. Devices
    beyond the number of processes are reserved, paid for and idle. In a PyTorchJob a script that Python
    runs by itself is one process, unless it starts more.
    """
    for pods in pods_of(file):
        count, devices = pods.processes(), pods.devices()
        processes = None if count is None else count.number
        if count is None or processes is None or devices is None:
            continue
        if devices == 0 and processes > 1 and pods.teller is not None:
            yield Hit(
                message=f"{processes} processes in a pod without a device: they train on its CPUs",
                fix=f'ask for them under limits: nvidia.com/gpu: "{processes}"',
                key=pods.asking,
            )
        if devices > processes:
            yield Hit(
                message=f"{processes} process{'' if processes == 1 else 'es'} in a pod with {devices} "
                f"devices: {devices - processes} {'is' if devices - processes == 1 else 'are'} idle",
                fix=f"write {count.written.format(devices)}, or ask for {processes}",
                key=count.key,
            )


@file_rule("PS529", Severity.ERROR, *JOBS, source=_GPUS)
def devices_are_limits(file: ConfigFile) -> Iterator[Hit]:
    """Devices are asked for by limits, and by equal requests where those are stated.

    Kubernetes shares no device among pods: it takes a limit for the request too, and refuses a pod with
    requests alone, or with another number.
    """
    for pods in pods_of(file):
        limits = pods.resources("limits")
        for name, number in pods.resources("requests").items():
            if name not in limits or str(limits[name]) != str(number):
                stated = "no limit" if name not in limits else f"a limit of {limits[name]}"
                yield Hit(
                    message=f"{number} of {name} requested with {stated}",
                    fix=f'write {name}: "{number}" under limits',
                    key=f"{pods.asking}.requests.{name}",
                )


@file_rule("PS530", Severity.ERROR, *JOBS, source=_TRAINER)
def pods_train_together(file: ConfigFile) -> Iterator[Hit]:
    """The pods of a job are started as one: by a launcher, that is told of all of them.

    The same command starts in every pod, and variables that torchrun reads say how many there are. A script
    that Python runs by itself reads none of those, and torchrun --standalone or --nnodes=1 overrides them:
    each pod then trains a model of its own, on the same data, and nobody is told. A node rank in digits
    makes all pods the same one. Beside a Master the Training Operator tells such a script of the others, as
    one process of each pod: with nprocPerNode it waits for processes that nobody starts.
    """
    for pods in pods_of(file):
        nodes, count = pods.nodes or 1, None if pods.count is None else pods.count.number
        if pods.teller is None:
            continue
        meant, told = nodes * (count or 1), nodes if pods.is_process else 1
        if pods.is_alone and meant > told:
            yield Hit(
                message=f"python runs once in each of {nodes} pod{'' if nodes == 1 else 's'}, by itself: "
                f"{meant} processes were meant to train together",
                fix="write command: [torchrun], with the script among args",
                key=f"{pods.key}.command",
            )
        if nodes > 1 and pods.is_torchruns:
            yield from _overridden(pods, nodes)


def _overridden(pods: Pods, nodes: int) -> Iterator[Hit]:
    """Yield what is wrong with an option of torchrun that stands in place of what the pods are told."""
    told, rank = pods.option("nnodes"), pods.option("node-rank") if pods.is_numbered else None
    if "--standalone" in pods.line:
        problem = f"torchrun --standalone in {nodes} pods: each trains alone"
        fix = f"remove --standalone: {pods.teller} says where the pods meet"
    elif told is not None and whole_number(told) not in (None, nodes):
        problem = f"torchrun is told of {told} nodes, and there are {nodes} pods"
        fix = f"remove --nnodes: {pods.teller} says how many there are"
    elif whole_number(rank) is not None and (pods.alike or 1) > 1:
        problem = f"{pods.alike} pods have the node rank {rank}"
        fix = f"remove --node-rank: {pods.teller} numbers the pods"
    else:
        return
    yield Hit(message=problem, fix=fix, key=f"{pods.key}.command")


@file_rule("PS531", Severity.ERROR, *JOBS, source=_VARIABLES)
def variables_and_words_are_text(file: ConfigFile) -> Iterator[Hit]:
    """The values of variables, the words of a command and its arguments are text.

    YAML makes numbers and switches of what stands without quotes, and Kubernetes refuses the job: it cannot
    unmarshal a number into a string.
    """
    for pods in pods_of(file):
        for key, entry in entries(file.get(pods.key), "env", pods.key):
            value = entry.get("value")
            if isinstance(value, bool | int | float):
                yield Hit(
                    message=f"{entry.get('name')} is {_plain(value)}, without quotes, which is no text",
                    fix=f'write value: "{_plain(value)}"',
                    key=key,
                )
        for name in ("command", "args"):
            words = file.get(f"{pods.key}.{name}")
            for index, word in enumerate(words if isinstance(words, list) else ()):
                if isinstance(word, bool | int | float):
                    yield Hit(
                        message=f"{name} has {_plain(word)}, without quotes, which is no text",
                        fix=f'write "{_plain(word)}"',
                        key=f"{pods.key}.{name}.{index}",
                    )


def _plain(value: float) -> str:
    """Return a number or a switch as YAML has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@file_rule("PS534", Severity.ERROR, *JOBS, source=_RUN, covers=("PIT512",))
def gpus_that_are_counted_are_there(file: ConfigFile) -> Iterator[Hit]:
    """A pod whose GPUs torchrun counts has some.

    --nproc-per-node gpu starts a process for each GPU that CUDA finds, and stops where it finds none
    ("Cuda is not available."), as does nprocPerNode: gpu of a PyTorchJob. A pod has the devices that its
    resources ask for.
    """
    for pods in pods_of(file):
        count = pods.processes()
        if count is not None and count.stated == "gpu" and pods.devices() == 0:
            yield Hit(
                message=f"{count.written.format('gpu')} in a pod that asks for no device",
                fix='ask for devices under limits, such as nvidia.com/gpu: "8", or write '
                f"{count.written.format('auto')}",
                key=pods.asking,
            )
