"""A TrainJob for Kubeflow Trainer, with the plan beside it: pods that are torchrun's agents.

Sources: https://github.com/kubeflow/trainer @8c0f505, pkg/apis/trainer/v1alpha1/trainjob_types.go (the
fields), pkg/runtime/framework/plugins/torch/torch.go (the variables that it sets, which torchrun reads),
manifests/base/runtimes/torch_distributed.yaml (the runtime and its names); of ``$`` in variables and in
arguments https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.emit.plan_file import plan_toml
from parastrat.emit.shell import accelerators, check_applied, check_launch, title
from parastrat.emit.text_file import EmitError, TextFile
from parastrat.hardware import DeviceType, NetworkKind, Vendor
from parastrat.launch import YOUR_SCRIPT
from parastrat.rules.pod_facts import label_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case

_JOB = """\
# {title}
# kubectl apply -f trainjob.yaml, in a cluster with Kubeflow Trainer and its runtime torch-distributed
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  plan.toml: |
{plan}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {name}
spec:
  runtimeRef:
    name: torch-distributed
  trainer:
{image}
    # torchrun reads where the pods meet from variables that Trainer sets
    command: [torchrun]
    args: {arguments}
    numNodes: {nodes}
    numProcPerNode: {ranks}
    env:
{env}
{resources}
  runtimePatches:
    - manager: parastrat/emit
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
                        containers:
                          - name: node
{security}                            volumeMounts:
                              - name: plan
                                mountPath: {folder}
                              - name: shared-memory
                                mountPath: /dev/shm
                        volumes:
                          - name: plan
                            configMap:
                              name: {name}
                          # of a container's usual 64 MiB NCCL and loaders' workers run out
                          - name: shared-memory
                            emptyDir:
                              medium: Memory
"""
_FOLDER = "/etc/parastrat"
#: by which device plugins call what they hand out
_RESOURCES = {
    (DeviceType.CUDA, Vendor.NVIDIA): "nvidia.com/gpu",
    (DeviceType.CUDA, Vendor.AMD): "amd.com/gpu",
    (DeviceType.HPU, Vendor.INTEL): "habana.ai/gaudi",
}
#: networks that lend pods devices beside their Ethernet, and pin memory for it
_RDMA = {
    NetworkKind.INFINIBAND: "InfiniBand",
    NetworkKind.ROCE: "RoCE",
    NetworkKind.EFA: "EFA",
}
#: a job's name is the first part of its pods' host names
_LONGEST = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What runs in each pod."""

    #: None: the runtime's own
    image: str | None = None
    #: the training script and its arguments, as they are called in the image
    script: tuple[str, ...] = (YOUR_SCRIPT,)


def emit(
    case: Case, container: Container | None = None, *, stored_ref: str | None = None
) -> tuple[TextFile, ...]:
    """Return ``trainjob.yaml``: a TrainJob of Kubeflow Trainer 2 and the ConfigMap with its plan.

    Args:
        case: the plan with its facts.
        container: what runs in each pod.
        stored_ref: MODEL as the plan shall store it (see ``plan_toml``).

    Raises:
        EmitError: torchrun cannot start this plan, ``auto_parallelize`` does not apply it, or Kubernetes
            has no such devices or variables.
    """
    check_launch(case)
    check_applied(case)
    _check_variables(case)
    container = container or Container()
    text = _JOB.format(
        title=title(case),
        name=_name(case.model.ref),
        plan=_indented(plan_toml(case, stored_ref=stored_ref).splitlines(), 4),
        image=_indented(_image(container), 4),
        arguments=f"[{', '.join(_text(word) for word in container.script)}]",
        nodes=case.launch.nodes,
        ranks=case.launch.ranks_per_node,
        env=_indented(_variables(case), 6),
        resources=_indented(_resources(case), 4),
        security=_security(case),
        folder=_FOLDER,
    )
    return (TextFile(path="trainjob.yaml", text=text),)


def _check_variables(case: Case) -> None:
    """Refuse variables that Trainer sets itself.

    Raises:
        EmitError: naming the first.
    """
    for name in case.launch.env:
        if name.startswith("PET_"):
            raise EmitError(
                f"{name} is set in [launch], and Kubeflow Trainer sets torchrun's variables itself",
                hint=f"take {name} out of [launch.env]",
            )


def _name(ref: str) -> str:
    """Return a name for the job and the plan that Kubernetes takes, of the model's."""
    return label_of(f"parastrat-{ref}", _LONGEST)


def _text(value: str) -> str:
    """Return a text of variables or arguments, in which Kubernetes makes one ``$`` of two."""
    return json.dumps(value.replace("$", "$$"), ensure_ascii=False)


def _image(container: Container) -> Iterator[str]:
    if container.image is None:
        yield "# image: one with torch, parastrat and the script; the runtime's own has torch alone"
    else:
        yield f"image: {json.dumps(container.image)}"


def _variables(case: Case) -> Iterator[str]:
    """Yield the variables of each rank; without those that name an interface of the hosts."""
    yield f"- {{name: PARASTRAT_PLAN, value: {_FOLDER}/plan.toml}}"
    for name, value in case.launch.env.items():
        if name.endswith("_SOCKET_IFNAME") and not value.startswith("^"):
            yield f"# without {name}={json.dumps(value)[1:-1]}: pods have interfaces of their own"
        else:
            yield f"- {{name: {name}, value: {_text(value)}}}"


def _resources(case: Case) -> Iterator[str]:
    """Yield what each pod asks for.

    Raises:
        EmitError: no device plugin is known for the devices.
    """
    device, network = case.hardware.device, case.hardware.network.kind
    if case.launch.nodes > 1 and network in _RDMA:
        yield f"# {_RDMA[network]}: add what the cluster's device plugin calls its adapters to the limits;"
        yield "# pods that are lent none go by sockets"
    if device.type is DeviceType.CPU:
        yield "# resourcesPerNode: the cores and the memory that a node can give to a pod"
        return
    resource = _RESOURCES.get((device.type, device.vendor))
    if resource is None:
        raise EmitError(
            f"no device plugin of Kubernetes is known for {device.name} ({device.type.value})",
            hint="emit it --to torchrun, and start run.sh in pods of your own",
        )
    yield "resourcesPerNode:"
    yield "  limits:"
    yield f"    {resource}: {accelerators(case)}"


def _security(case: Case) -> str:
    """Return what lets a container pin memory for a network's adapters."""
    if case.launch.nodes == 1 or case.hardware.network.kind not in _RDMA:
        return ""
    own = ["securityContext:", "  capabilities:", "    add: [IPC_LOCK]"]
    return f"{_indented(own, 28)}\n"


def _indented(lines: Iterator[str] | list[str], by: int) -> str:
    return "\n".join(f"{' ' * by}{line}" if line else "" for line in lines)
