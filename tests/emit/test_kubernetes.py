"""The TrainJob of Kubeflow Trainer: what is in it, and what it refuses."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from ruamel.yaml import YAML

from parastrat.emit import EMITTERS, Container, EmitError, Target
from parastrat.emit.kubernetes import emit
from parastrat.hardware import DeviceType, NetworkKind, Vendor
from parastrat.plan import Backend

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case
    from parastrat.hardware import Device


def documents(case: Case, container: Container | None = None) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Return the plan's ConfigMap, the job, and the text of both."""
    (file,) = emit(case, container)
    plan, job = YAML(typ="safe").load_all(file.text)
    return plan, job, file.text


def pod(job: dict[str, Any]) -> dict[str, Any]:
    """Return what is patched of the runtime's pods."""
    (patch,) = job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node"
    found: dict[str, Any] = node["template"]["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(("name", "nodes", "ranks"), [("one-node", 1, 8), ("two-nodes", 2, 8)])
def test_goldens(
    name: str, nodes: int, ranks: int, *, case_of: Callable[..., Case], golden: Callable[[str, str], None]
) -> None:
    (file,) = EMITTERS[Target.KUBERNETES](case_of(nodes=nodes, ranks=ranks))
    golden(f"{name}.{file.path}", file.text)


def test_the_plan_is_mounted_where_its_variable_says(case_of: Callable[..., Case]) -> None:
    plan, job, _ = documents(case_of(nodes=2))
    assert plan["metadata"]["name"] == job["metadata"]["name"] == "parastrat-llama-3-1-8b"
    assert tomllib.loads(plan["data"]["plan.toml"])["plan"]["dp_shard"] == 16
    env = {entry["name"]: entry["value"] for entry in job["spec"]["trainer"]["env"]}
    assert env["PARASTRAT_PLAN"] == "/etc/parastrat/plan.toml"
    (container,) = pod(job)["containers"]
    mounts = {entry["name"]: entry["mountPath"] for entry in container["volumeMounts"]}
    volumes = {entry.pop("name"): entry for entry in pod(job)["volumes"]}
    assert mounts == {"plan": "/etc/parastrat", "shared-memory": "/dev/shm"}  # noqa: S108
    assert volumes == {
        "plan": {"configMap": {"name": plan["metadata"]["name"]}},
        "shared-memory": {"emptyDir": {"medium": "Memory"}},
    }


def test_the_job_starts_the_plans_ranks(case_of: Callable[..., Case]) -> None:
    trainer = documents(case_of(nodes=4, ranks=2))[1]["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 2)
    assert (trainer["command"], trainer["args"]) == (["torchrun"], ["YOUR_SCRIPT.py"])
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 2}}


def test_what_users_write_arrives_as_it_is(case_of: Callable[..., Case]) -> None:
    """Kubernetes puts variables in place of $(NAME), and one dollar in place of two."""
    container = Container(image="here/me:1", script=("train.py", "$(HOME)", 'a "b"\n', "{x}"))
    case = case_of()
    case = replace(case, launch=replace(case.launch, env={"SOME_VALUE": "a'b\"; $(X) $$ #\n\\ é"}))
    trainer = documents(case, container)[1]["spec"]["trainer"]
    assert trainer["image"] == "here/me:1"
    assert [word.replace("$$", "$") for word in trainer["args"]] == list(container.script)
    assert trainer["args"][1] == "$$(HOME)"
    assert trainer["env"][-1] == {"name": "SOME_VALUE", "value": "a'b\"; $$(X) $$$$ #\n\\ é"}


def test_interfaces_of_the_hosts_are_left_out(case_of: Callable[..., Case]) -> None:
    case = case_of(nodes=2)
    names = {"NCCL_SOCKET_IFNAME": "bond0\n", "GLOO_SOCKET_IFNAME": "^lo", "NCCL_DEBUG": "WARN"}
    _, job, text = documents(replace(case, launch=replace(case.launch, env=names)))
    env = [entry["name"] for entry in job["spec"]["trainer"]["env"]]
    assert env == ["PARASTRAT_PLAN", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG"]
    assert "# without NCCL_SOCKET_IFNAME=bond0\\n: pods have interfaces of their own" in text


def test_rdma_needs_memory_that_stays_and_adapters(case_of: Callable[..., Case]) -> None:
    _, job, text = documents(case_of(nodes=2))
    (container,) = pod(job)["containers"]
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert "# InfiniBand: add what the cluster's device plugin calls its adapters" in text
    case = case_of(nodes=2)
    network = replace(case.hardware.network, kind=NetworkKind.ETHERNET)
    _, job, text = documents(replace(case, hardware=replace(case.hardware, network=network)))
    assert "securityContext" not in pod(job)["containers"][0]
    assert "adapters" not in text


def test_processors_are_asked_for_by_whoever_knows_the_nodes(
    case_of: Callable[..., Case], cpu_device: Device
) -> None:
    _, job, text = documents(case_of(nodes=2, device=cpu_device))
    assert "resourcesPerNode" not in job["spec"]["trainer"]
    assert "# resourcesPerNode: the cores and the memory that a node can give to a pod" in text


@pytest.mark.parametrize(
    ("kind", "vendor", "resource"),
    [
        (DeviceType.CUDA, Vendor.AMD, "amd.com/gpu"),
        (DeviceType.HPU, Vendor.INTEL, "habana.ai/gaudi"),
        (DeviceType.NPU, Vendor.CPU, None),
    ],
)
def test_devices_by_their_plugins(
    kind: DeviceType, vendor: Vendor, resource: str | None, case_of: Callable[..., Case]
) -> None:
    case = case_of()
    device = replace(case.hardware.device, type=kind, vendor=vendor)
    case = replace(case, hardware=replace(case.hardware, device=device))
    if resource is None:
        with pytest.raises(EmitError, match="no device plugin of Kubernetes is known"):
            emit(case)
    else:
        assert documents(case)[1]["spec"]["trainer"]["resourcesPerNode"]["limits"] == {resource: 8}


def test_refuses_what_trainer_sets_itself(case_of: Callable[..., Case]) -> None:
    case = case_of()
    with pytest.raises(EmitError, match="PET_NNODES is set"):
        emit(replace(case, launch=replace(case.launch, env={"PET_NNODES": "2"})))
    with pytest.raises(EmitError, match="backend is mpi"):
        emit(replace(case, plan=replace(case.plan, backend=Backend.MPI)))


@pytest.mark.parametrize("ref", ["a/Very Long/path_with.py:many" + "x" * 90, "-.-", "hf:Org/Name"])
def test_names_are_what_kubernetes_takes(ref: str, case_of: Callable[..., Case]) -> None:
    case = case_of()
    model = type(case.model)(**{**vars(case.model), "ref": ref})
    name = documents(replace(case, model=model))[1]["metadata"]["name"]
    assert len(name) <= 40
    assert name.strip("-") == name
    assert name.replace("-", "").isalnum()
    assert name == name.lower()
