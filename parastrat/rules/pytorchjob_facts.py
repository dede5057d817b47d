"""What a PyTorchJob of Kubeflow's Training Operator says of its pods, and what the operator tells them.

Source: https://github.com/kubeflow/training-operator v1.9.0, pkg/controller.v1/pytorch/envvar.go, master.go
and elastic.go (the variables; v1.7 sets PET_NPROC_PER_NODE beside a Master alone),
pkg/apis/kubeflow.org/v1/pytorch_types.go and pytorch_defaults.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.config_file import whole_number
from parastrat.rules.pod_facts import Count, Pods, entries, shared_memory_of, words_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

REPLICAS = "spec.pytorchReplicaSpecs"
ELASTIC = "spec.elasticPolicy"
MASTER, WORKER = "Master", "Worker"
#: PyTorchJobDefaultContainerName, of what trains
CONTAINER = "pytorch"
COUNT = "spec.nprocPerNode"
OLD_COUNT = f"{ELASTIC}.nProcPerNode"


def pytorchjob_pods(file: ConfigFile) -> Iterator[Pods]:
    """Yield the pods of each kind of replicas that a job has."""
    nodes, count, told = pods_in_all(file), _count_of(file), _variables(file)
    for name in (MASTER, WORKER):
        pod = f"{REPLICAS}.{name}.template.spec"
        key = _container_of(file, pod)
        if key is None:
            continue
        spec = file.get(pod)
        yield Pods(
            key=key,
            asking=f"{key}.resources",
            asked=file.get(f"{key}.resources"),
            words=words_at(file, key),
            nodes=nodes,
            alike=replicas_of(file, name),
            count=count,
            teller="the operator" if is_led(file) else None,
            told=told,
            is_process=file.get(f"{REPLICAS}.{MASTER}") is not None or nodes == 1,
            shared_memory=tuple(shared_memory_of(spec, pod)),
            # the host's is there then
            is_memory_seen=not spec.get("hostIPC"),
            is_whole=True,
        )


def replicas_of(file: ConfigFile, name: str) -> int | None:
    """Return the replicas of a kind: none where the job has none, one where it says no number."""
    stated = file.get(f"{REPLICAS}.{name}")
    if not isinstance(stated, dict):
        return 0
    return 1 if stated.get("replicas") is None else file.number(f"{REPLICAS}.{name}.replicas")


def pods_in_all(file: ConfigFile) -> int | None:
    """Return the pods of a job; None where their number is none."""
    master, workers = replicas_of(file, MASTER), replicas_of(file, WORKER)
    return None if master is None or workers is None else master + workers


def is_led(file: ConfigFile) -> bool:
    """Whether pods are told where they meet: at the Master, or at the first of elastic workers."""
    return any(isinstance(file.get(key), dict) for key in (f"{REPLICAS}.{MASTER}", ELASTIC))


def limits_of(file: ConfigFile) -> tuple[int, int] | None:
    """Return the fewest and the most pods that train together under an elastic policy; None without one.

    Where one of the limits is not stated it is the other; without both they are the number of workers.
    """
    if not isinstance(file.get(ELASTIC), dict):
        return None
    least, most = file.number(f"{ELASTIC}.minReplicas"), file.number(f"{ELASTIC}.maxReplicas")
    workers = replicas_of(file, WORKER) or 0
    first = least if least is not None else most
    last = most if most is not None else least
    return (workers if first is None else first, workers if last is None else last)


def _count_of(file: ConfigFile) -> Count | None:
    stated, old = file.get(COUNT), file.number(OLD_COUNT)
    if isinstance(stated, str):
        return Count(stated=stated, key=COUNT, written='nprocPerNode: "{}"')
    return None if old is None else Count(stated=str(old), key=OLD_COUNT, written="nProcPerNode: {}")


def _container_of(file: ConfigFile, pod: str) -> str | None:
    """Return the key of what trains in a pod; of its first container where none has that name."""
    found = list(entries(file.get(pod), "containers", pod))
    named = [key for key, container in found if container.get("name") == CONTAINER]
    return next(iter([*named, *(key for key, _ in found)]), None)


def _variables(file: ConfigFile) -> Mapping[str, str | None]:
    """Return what the operator sets in pods, but for PYTHONUNBUFFERED, which is the same in all."""
    nodes, count = pods_in_all(file), _count_of(file)
    told: dict[str, str | None] = {}
    if file.get(f"{REPLICAS}.{MASTER}") is not None:
        # words count as one here, and so does the older key
        own = None if count is None or count.key != COUNT else whole_number(count.stated)
        of_master = ("MASTER_PORT", "PET_MASTER_PORT", "MASTER_ADDR", "PET_MASTER_ADDR", "RANK")
        told |= dict.fromkeys((*of_master, "PET_NODE_RANK"))
        told["WORLD_SIZE"] = None if nodes is None else str(nodes * (1 if own is None else own))
    told["PET_NPROC_PER_NODE"] = "auto" if count is None else count.stated
    limits = limits_of(file)
    if limits is None:
        return {**told, "PET_NNODES": None if nodes is None else str(nodes)}
    told["PET_NNODES"] = str(limits[0]) if limits[0] == limits[1] else f"{limits[0]}:{limits[1]}"
    told["PET_RDZV_ENDPOINT"] = None
    told["PET_RDZV_BACKEND"] = str(file.get(f"{ELASTIC}.rdzvBackend") or "c10d")
    for key, name in (("maxRestarts", "PET_MAX_RESTARTS"), ("rdzvId", "PET_RDZV_ID")):
        if file.get(f"{ELASTIC}.{key}") is not None:
            told[name] = str(file.get(f"{ELASTIC}.{key}"))
    if file.get(f"{ELASTIC}.rdzvConf") is not None:
        told["PET_RDZV_CONF"] = None
    return told
