"""PS541 to PS548: PyTorchJobs of Kubeflow's Training Operator, and what it does with them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.config_file import FILLED_IN, ConfigFormat
from parastrat.finding import Hit, Severity
from parastrat.rules.pod_facts import entries
from parastrat.rules.pytorchjob_facts import (
    CONTAINER,
    COUNT,
    ELASTIC,
    MASTER,
    OLD_COUNT,
    REPLICAS,
    WORKER,
    is_led,
    limits_of,
    pods_in_all,
    pytorchjob_pods,
    replicas_of,
)
from parastrat.rules.rule import file_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.config_file import ConfigFile

_OPERATOR = "https://github.com/kubeflow/training-operator/blob/v1.9.0/pkg"
_WEBHOOK = f"{_OPERATOR}/webhooks/pytorch/pytorchjob_webhook.go"
_VARIABLES = f"{_OPERATOR}/controller.v1/pytorch/envvar.go"
_ELASTIC = f"{_OPERATOR}/controller.v1/pytorch/elastic.go"
_PODS = f"{_OPERATOR}/controller.v1/common/pod.go"
_RUN = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/run.py"
_FORMAT = ConfigFormat.PYTORCHJOB

#: pytorch_defaults.go has it where a replica says nothing
_USUAL_POLICY = "OnFailure"
#: what torchrun counts by: a number, or the name of a kind of device, which backends may add to
_COUNTS = re.compile(r"[1-9]\d{0,8}|[a-z]\w*")
#: options by which a command says itself where its pods meet
_MEETING = re.compile(r"--(?:master[-_]addr|rdzv[-_]endpoint|standalone)\b")
_BACKENDS_OF_SERVERS = ("etcd", "etcd-v2")


@file_rule("PS541", Severity.ERROR, _FORMAT, source=_WEBHOOK)
def replicas_are_as_the_operator_takes_them(file: ConfigFile) -> Iterator[Hit]:
    """A PyTorchJob has one Master at most, and a container called pytorch in each pod.

    The Training Operator looks for what trains by that name, and tells other pods to meet at the Master.
    Its webhook refuses jobs with several Masters, or with pods without such a container.
    """
    masters = replicas_of(file, MASTER)
    if masters is not None and masters > 1:
        yield Hit(
            message=f"{masters} Masters, where the operator takes one",
            fix=f"write replicas: 1, and the others among the replicas of {WORKER}",
            key=f"{REPLICAS}.{MASTER}.replicas",
        )
    for name in (MASTER, WORKER):
        pod = f"{REPLICAS}.{name}.template.spec"
        found = [container.get("name") for _, container in entries(file.get(pod), "containers", pod)]
        if isinstance(file.get(f"{pod}.containers"), list) and CONTAINER not in found:
            called = ", ".join(map(str, filter(None, found)))
            yield Hit(
                message=f"no container of the {name} is called {CONTAINER}{called and f': {called}'}",
                fix=f"write name: {CONTAINER} for the one that trains",
                key=f"{pod}.containers",
            )


@file_rule("PS542", Severity.ERROR, _FORMAT, source=_WEBHOOK)
def elastic_policies_have_workers(file: ConfigFile) -> Iterator[Hit]:
    """An elasticPolicy is one of Workers, with limits in order, and processes are counted in one place.

    The first Worker is where elastic pods meet. The webhook refuses a policy without Workers, and its old
    nProcPerNode beside nprocPerNode of the job. Torchrun refuses fewer nodes at most than at least.
    """
    limits = limits_of(file)
    if limits is None:
        return
    if file.get(f"{REPLICAS}.{WORKER}") is None:
        yield Hit(
            message=f"an elasticPolicy without a {WORKER}, which is where its pods meet",
            fix=f"write the replicas under {WORKER}, or remove elasticPolicy",
            key=ELASTIC,
        )
    if file.get(COUNT) is not None and file.get(OLD_COUNT) is not None:
        yield Hit(
            message="nProcPerNode stands beside the job's nprocPerNode, and the operator takes one of them",
            fix="remove elasticPolicy.nProcPerNode",
            key=OLD_COUNT,
        )
    if limits[0] > limits[1]:
        yield Hit(
            message=f"at least {limits[0]} pods, and {limits[1]} at most",
            fix="write a maxReplicas that is no less than minReplicas",
            key=f"{ELASTIC}.minReplicas",
        )


@file_rule("PS543", Severity.WARNING, _FORMAT, source=_ELASTIC)
def as_many_pods_as_train_together(file: ConfigFile) -> Iterator[Hit]:
    """A job has as many pods as its elasticPolicy lets train together.

    Torchrun is told of minReplicas:maxReplicas as its nodes, or of the number of Workers where neither is
    stated; a Master is a node as well. Fewer pods wait until they give up, and those beyond are left out.
    With metrics, an autoscaler changes the number of Workers.
    """
    limits, pods = limits_of(file), pods_in_all(file)
    is_scaled = file.get(f"{ELASTIC}.metrics") is not None
    if (
        limits is None
        or pods is None
        or is_scaled
        or not replicas_of(file, WORKER)
        or limits[0] > limits[1]
    ):
        return
    if pods < limits[0]:
        yield Hit(
            message=f"{pods} pod{'' if pods == 1 else 's'}, where training begins with {limits[0]}",
            fix=f"write minReplicas: {pods}, or more replicas",
            key=f"{ELASTIC}.minReplicas",
        )
    if pods > limits[1]:
        yield Hit(
            message=f"{pods} pods, of which {limits[1]} train together: the others wait outside",
            fix=f"write maxReplicas: {pods}, or fewer replicas",
            key=f"{ELASTIC}.maxReplicas",
        )


@file_rule("PS544", Severity.ERROR, _FORMAT, source=_VARIABLES)
def workers_are_told_where_they_meet(file: ConfigFile) -> Iterator[Hit]:
    """Several Workers have a Master, or an elasticPolicy.

    The operator sets MASTER_ADDR, RANK and their kin only in jobs with a Master, and a rendezvous only in
    those with an elasticPolicy. Others are told of their number alone: each pod takes itself for the first
    and waits for the rest, or trains alone.
    """
    workers = replicas_of(file, WORKER)
    if is_led(file) or workers is None or workers == 1:
        return
    for pods in pytorchjob_pods(file):
        if _MEETING.search(pods.line) is None:
            yield Hit(
                message=f"{workers} Workers without a Master or an elasticPolicy: "
                "nobody tells them where to meet",
                fix=f"write one of them as {MASTER}, or add elasticPolicy: {{rdzvBackend: c10d}}",
                key=f"{REPLICAS}.{WORKER}",
            )


@file_rule("PS545", Severity.WARNING, _FORMAT, source=_VARIABLES)
def variables_are_the_operators(file: ConfigFile) -> Iterator[Hit]:
    """A PyTorchJob sets none of the variables that the operator sets in its pods.

    The operator appends its own to those of each container, and of two by one name the last one holds: what
    the job says of MASTER_ADDR, WORLD_SIZE, RANK or PET_NNODES is lost.
    """
    fields = {
        "PET_NPROC_PER_NODE": "nprocPerNode",
        "PET_NNODES": "replicas",
        "PET_MAX_RESTARTS": "elasticPolicy.maxRestarts",
        "PET_RDZV_BACKEND": "elasticPolicy.rdzvBackend",
    }
    for pods in pytorchjob_pods(file):
        for key, entry in entries(file.get(pods.key), "env", pods.key):
            name = str(entry.get("name"))
            if name in pods.told:
                yield Hit(
                    message=f"{name} is set by the operator behind this one, which is lost",
                    fix=f"write {fields[name]} instead" if name in fields else "remove it",
                    key=key,
                )


@file_rule("PS546", Severity.WARNING, _FORMAT, source=_PODS)
def restarts_are_the_replicas(file: ConfigFile) -> Iterator[Hit]:
    """What is restarted is said beside template, not within it.

    The operator puts the restartPolicy of the replicas in place of the pod's own: OnFailure where they say
    nothing, and Never for ExitCode, by which it restarts pods itself.
    """
    for name in (MASTER, WORKER):
        key = f"{REPLICAS}.{name}.template.spec.restartPolicy"
        policy = file.get(f"{REPLICAS}.{name}.restartPolicy") or _USUAL_POLICY
        own, held = file.get(key), "Never" if policy == "ExitCode" else policy
        if own is not None and own != held:
            yield Hit(
                message=f"restartPolicy: {own} of the pod is lost: the replicas' {policy} holds",
                fix=f"write restartPolicy: {own} beside template, and remove this one",
                key=key,
            )


@file_rule("PS547", Severity.ERROR, _FORMAT, source=_RUN)
def processes_are_counted_by_a_number_or_a_word(file: ConfigFile) -> Iterator[Hit]:
    """A PyTorchJob's nprocPerNode is a number in quotes, or a word by which torchrun counts.

    Torchrun reads it as its --nproc-per-node: auto, cpu, gpu, or the name of another kind of device. It
    stops at anything else, in every pod.
    """
    stated = file.get(COUNT)
    if isinstance(stated, str) and not FILLED_IN.search(stated) and _COUNTS.fullmatch(stated) is None:
        yield Hit(
            message=f'nprocPerNode is "{stated}", which is no number of processes',
            fix='write auto, or a number, such as "8"',
            key=COUNT,
        )


@file_rule("PS548", Severity.ERROR, _FORMAT, source=_ELASTIC)
def elastic_pods_can_meet(file: ConfigFile) -> Iterator[Hit]:
    """An elasticPolicy's rendezvous is one that torchrun can begin.

    With standalone: true the operator sets PET_STANDALONE to nothing, which torchrun cannot read as a
    number: it stops in every pod. The etcd backends need a server. Without rdzvHost it is looked for in the
    first Worker, where none is.
    """
    backend = file.get(f"{ELASTIC}.rdzvBackend")
    if file.is_on(f"{ELASTIC}.standalone"):
        yield Hit(
            message="standalone: true sets PET_STANDALONE to nothing, at which torchrun stops",
            fix="remove it, and write torchrun --standalone where the job has one pod",
            key=f"{ELASTIC}.standalone",
        )
    if backend in _BACKENDS_OF_SERVERS and file.get(f"{ELASTIC}.rdzvHost") is None:
        yield Hit(
            message=f"rdzvBackend: {backend} without rdzvHost looks for its server in the first Worker",
            fix="name the server's host in rdzvHost, or write rdzvBackend: c10d",
            key=f"{ELASTIC}.rdzvBackend",
        )
