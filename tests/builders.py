"""Small made-up cases: every field has a default, so that a test names only what it is about.

``case(tp=16, scale_up_devices=8)`` routes each keyword to the part that has such a field. The default is
one GPU with one small decoder, on which no rule fires.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from parastrat.assess import columns_of
from parastrat.case import Case
from parastrat.columns import Columns
from parastrat.estimate import Estimate, MemoryEstimate, TimeEstimate
from parastrat.hardware import (
    Device,
    DeviceType,
    FabricKind,
    Hardware,
    Host,
    HostSystem,
    Link,
    MatmulCurve,
    Network,
    NetworkKind,
    Rates,
    Vendor,
)
from parastrat.launch import Launch
from parastrat.model import Block, Family, ModelSpec, Parameters
from parastrat.plan import Backend, Mesh, Plan, Recompute, Shard
from parastrat.rules import findings_of
from parastrat.saved import Activations, Saved
from parastrat.stack import Crossing, Kernels, Stack, Unstated
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision, Workload

#: keywords that stand for a field of another name, because several parts have a field ``name`` or ``type``
_RENAMED = {
    "device_type": ("device", "type"),
    "device_name": ("device", "name"),
    "vendor": ("device", "vendor"),
    "network": ("network", "kind"),
    "host_system": ("host", "system"),
    "cores": ("host", "cores"),
    "host_memory_bytes": ("host", "memory_bytes"),
    "hardware_name": ("hardware", "name"),
    "optimizer": ("workload", "optimizer"),
    "model_name": ("model", "name"),
    "stack": ("stack", "name"),
    "splits_backward": ("stack", "splits_backward"),
    "dtensors": ("stack", "dtensors"),
    "launch_backend": ("launch", "backend"),
    "workload_precision": ("workload", "precision"),
    "model_parameters": ("model", "parameters"),
}

_PARTS: dict[str, type] = {
    "mesh": Mesh,
    "plan": Plan,
    "workload": Workload,
    "model": ModelSpec,
    "device": Device,
    "network": Network,
    "host": Host,
    "hardware": Hardware,
    "launch": Launch,
    "memory": MemoryEstimate,
}

#: fields that several parts have; the first part named here takes them
_SHARED = {"precision": "plan", "sequence_length": "workload", "backend": "plan", "parameters": "memory"}


def case(**changes: Any) -> Case:
    """Return a case with the given fields; the batch, the nodes and the launch follow the mesh."""
    given = _routed(changes)
    plan = _plan(given)
    workload = Workload(
        **{
            "global_batch_size": plan.global_batch_size,
            "sequence_length": 1024,
            "optimizer": Optimizer.ADAMW,
            "precision": plan.precision,
            **given["workload"],
        }
    )
    hardware = _hardware(given, plan)
    launch = {
        "nodes": hardware.num_nodes,
        "ranks_per_node": hardware.devices_per_node,
        "backend": "cpu:gloo,cuda:nccl" if plan.mesh.world_size > 1 else "",
        "device": hardware.device.type.value,
        "env": {"OMP_NUM_THREADS": "1"},
        **given["launch"],
    }
    return Case(
        model=model(**({"sequence_length": workload.sequence_length} | given["model"])),
        hardware=hardware,
        workload=workload,
        stack=replace(STACK, **given["stack"]),
        plan=plan,
        estimate=estimate(**given["memory"]),
        launch=Launch(**launch),
    )


def codes(**changes: Any) -> set[str]:
    """Return the codes that fire on a case."""
    made = case(**changes)
    return {finding.code for finding in findings_of(made, columns_of(made))}


def columns(**changes: Any) -> Columns:
    """Return a case's columns."""
    return columns_of(case(**changes))


def model(**changes: Any) -> ModelSpec:
    """Return a decoder of eight layers and sixteen heads."""
    saved = Saved(tensor=1000, sequence=1000)
    block = Block(
        name="layers",
        repeat=8,
        parameters=(Parameters(trainable=1000),),
        operators=(),
        activations=Activations(none=saved, attention=saved, selective=saved, full=saved),
        working=saved,
        boundary_bytes=1000,
    )
    default: dict[str, Any] = {
        "ref": "small",
        "name": "small",
        "family": Family.DECODER,
        "blocks": (block,),
        "parameters": 8000,
        "active_parameters": 8000,
        "sequence_length": 1024,
        "precision": Precision.BF16_MIXED,
        "causal": True,
        "layers": 8,
        "hidden": 256,
        "heads": 16,
        "kv_heads": 16,
        "vocab": 8192,
        "max_sequence_length": 8192,
    }
    return ModelSpec(**(default | changes))


def device(**changes: Any) -> Device:
    """Return a made-up GPU with bf16 and fp8."""
    rates = Rates(fp32=1e13, tf32=1e14, bf16=2e14, fp16=2e14, fp8=4e14)
    default: dict[str, Any] = {
        "name": "gpu",
        "vendor": Vendor.NVIDIA,
        "type": DeviceType.CUDA,
        "memory_bytes": 80 * GIB,
        "usable_memory_bytes": 78 * GIB,
        "memory_bytes_per_s": 2e12,
        "peak": rates,
        "sustained": rates,
        "matmul": MatmulCurve(ceiling=1.0, m_half=64, n_half=64, k_half=64),
        "bf16_native": True,
        "launch_s": 5e-6,
        "host_bytes_per_s": 2e10,
    }
    return Device(**(default | changes))


def hardware(**changes: Any) -> Hardware:
    """Return nodes of eight GPUs behind InfiniBand; one node unless more are asked for."""
    default: dict[str, Any] = {
        "name": "cluster",
        "device": device(),
        "devices_per_node": 8,
        "num_nodes": 1,
        "scale_up_devices": 8,
        "scale_up_kind": FabricKind.NVSWITCH,
        "scale_up": Link(nominal_bytes_per_s=3e11, bytes_per_s=2.4e11, latency_s=2e-6),
        "scale_out": Link(nominal_bytes_per_s=2.5e10, bytes_per_s=2e10, latency_s=1e-5),
        "host": Host(cores=96, memory_bytes=1024 * GIB, numa_nodes=2, system=HostSystem.LINUX),
        "network": network(),
    }
    return Hardware(**(default | changes))


def network(**changes: Any) -> Network:
    """Return an InfiniBand network of which all that rules read is known and good."""
    default: dict[str, Any] = {
        "kind": NetworkKind.INFINIBAND,
        "node_bits_per_s": 3.2e12,
        "ipoib": True,
        "socket_ifname": "ib0",
        "gpudirect": True,
        "plugin": True,
    }
    return Network(**(default | changes))


def cpu_hosts(**changes: Any) -> dict[str, Any]:
    """Return the keywords that make a case one of two CPU hosts with a rank each."""
    return {
        "device_type": DeviceType.CPU,
        "vendor": Vendor.CPU,
        "devices_per_node": 1,
        "scale_up_devices": 1,
        "scale_up_kind": FabricKind.NONE,
        "num_nodes": 2,
        "dp_replicate": 2,
        "backend": Backend.GLOO,
        "launch_backend": "gloo",
        "host_bytes_per_s": None,
        **changes,
    }


def estimate(**memory: Any) -> Estimate:
    """Return an estimate whose peak fills half of the card."""
    default: dict[str, Any] = {
        "parameters": 20 * GIB,
        "gradients": 5 * GIB,
        "optimizer": 5 * GIB,
        "activations": 5 * GIB,
        "transient": 3 * GIB,
        "overhead": 2 * GIB,
        "capacity": 78 * GIB,
        "margin": 4 * GIB,
    }
    time = TimeEstimate(
        compute=0.8,
        tp_exposed=0.0,
        cp_exposed=0.0,
        ep_exposed=0.0,
        dp_exposed=0.1,
        pp_bubble=0.0,
        pp_exposed=0.0,
        optimizer=0.1,
        step_low=0.8,
        step_high=1.2,
    )
    return Estimate(
        memory=MemoryEstimate(**(default | memory)),
        time=time,
        tokens_per_s_per_gpu=1000.0,
        model_tflops_per_gpu=100.0,
        mfu=0.5,
    )


STACK = Stack(
    name="torch",
    kernels=Kernels.EAGER,
    dtensors=True,
    master_weight_bytes=0,
    mixed_parameter_bytes=4,
    mixed_gradient_bytes=4,
    dp_overlap=0.7,
    zero_overlap=0.7,
    fsdp_overlap=0.8,
    tp_overlap=0.0,
    async_tp_overlap=0.0,
    pp_overlap=0.0,
    network_efficiency=0.8,
    elementwise_factor=1.3,
    dispatched_factor=1.11,
    launches_per_operator=1.2,
    launches_per_dispatch=0.3,
    fp8_cast_bytes=0.0,
    step_constant_s=0.01,
    selective_recompute=Recompute.SELECTIVE,
    crossing=Crossing.BUFFERS,
    unstated=Unstated(recompute=Recompute.NONE, shard=Shard.NONE, sequence_parallel=False),
    memory_margin=0.06,
    fragmentation=0.03,
    context_bytes=GIB,
    host_process_bytes=2 * GIB,
    time_spread=0.2,
    source="made up",
)


def _routed(changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return each keyword under the part whose field it is."""
    given: dict[str, dict[str, Any]] = {part: {} for part in (*_PARTS, "stack")}
    for keyword, value in changes.items():
        part, name = _RENAMED.get(keyword) or (_part_of(keyword), keyword)
        given[part][name] = value
    return given


def _part_of(keyword: str) -> str:
    if keyword in _SHARED:
        return _SHARED[keyword]
    owners = [part for part, kind in _PARTS.items() if keyword in {field.name for field in fields(kind)}]
    if len(owners) != 1:
        raise TypeError(f"{keyword} is a field of {owners or 'no part'}; add it to _RENAMED or _SHARED")
    return owners[0]


def _plan(given: dict[str, dict[str, Any]]) -> Plan:
    default: dict[str, Any] = {
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "precision": Precision.BF16_MIXED,
        "backend": Backend.NCCL,
    }
    return Plan(mesh=Mesh(**given["mesh"]), **(default | given["plan"]))


def _hardware(given: dict[str, dict[str, Any]], plan: Plan) -> Hardware:
    """Return just as many devices as the mesh has ranks, eight to a node, unless they are given."""
    world = plan.mesh.world_size
    asked = given["hardware"]
    per_node = asked.get("devices_per_node", min(world, 8))
    base = hardware()
    return hardware(
        **{
            "device": device(**given["device"]),
            "network": replace(base.network, **given["network"]),
            "host": replace(base.host, **given["host"]),
            "devices_per_node": per_node,
            "num_nodes": max(1, world // per_node),
            **asked,
        }
    )
