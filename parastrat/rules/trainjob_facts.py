"""What a TrainJob of Kubeflow Trainer says of its pods, and what Trainer tells them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.rules.pod_facts import Count, Pods, entries, shared_memory_of, words_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.config_file import ConfigFile

#: Trainer's constants.ContainerTrainerPort
_PORT = 29400
#: Trainer's own runtime of torch, which mounts nothing
_RUNTIME = "torch-distributed"
_SPEC = "spec.trainer"


def trainjob_pods(file: ConfigFile) -> Pods:
    """Return the pods of a job, which are all alike."""
    nodes, stated = file.number(f"{_SPEC}.numNodes"), file.number(f"{_SPEC}.numProcPerNode")
    # those by other names than torch's are unknown
    runtime = str(file.get("spec.runtimeRef.name") or "")
    count = Count(stated=str(stated), key=f"{_SPEC}.numProcPerNode", written="numProcPerNode: {}")
    return Pods(
        key=_SPEC,
        asking=f"{_SPEC}.resourcesPerNode",
        asked=file.get(f"{_SPEC}.resourcesPerNode"),
        words=words_at(file, _SPEC),
        nodes=nodes,
        alike=nodes,
        count=None if stated is None else count,
        teller="Trainer" if "torch" in runtime else None,
        told=_variables(nodes, stated) if "torch" in runtime else {},
        is_process=False,
        shared_memory=tuple(found for key, pod in _patched(file) for found in shared_memory_of(pod, key)),
        is_memory_seen=runtime == _RUNTIME and not _is_patched_in_old_words(file),
        is_whole=False,
    )


def _variables(nodes: int | None, processes: int | None) -> Mapping[str, str | None]:
    """Return what Trainer's plugin for torch sets: its constants.TorchRunReservedEnvNames."""
    return {
        "PET_NNODES": None if nodes is None else str(nodes),
        "PET_NPROC_PER_NODE": None if processes is None else str(processes),
        "PET_NODE_RANK": None,
        "PET_MASTER_ADDR": None,
        "PET_MASTER_PORT": str(_PORT),
    }


def _is_patched_in_old_words(file: ConfigFile) -> bool:
    """Whether a job changes its pods in the words of release 2.0, which may say anything of them."""
    return any(file.get(f"spec.pod{what}Overrides") is not None for what in ("Spec", "Template"))


def _patched(file: ConfigFile) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the pods that a job's patches change, with their keys."""
    inside = "trainingRuntimeSpec.template.spec"
    for key, patch in entries(file.get("spec"), "runtimePatches", "spec"):
        for place, job in entries(_within(patch, inside), "replicatedJobs", f"{key}.{inside}"):
            pod = _within(job, "template.spec.template.spec")
            if isinstance(pod, dict):
                yield f"{place}.template.spec.template.spec", pod


def _within(value: Any, key: str) -> Any:
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
