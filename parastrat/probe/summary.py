"""A probed host in a fixed vocabulary, which scripts and recorded hosts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.hardware import (
    Device,
    DeviceType,
    FabricKind,
    Hardware,
    Host,
    MatmulCurve,
    NetworkKind,
    Rates,
    Vendor,
)
from parastrat.plan import Backend
from parastrat.probe.topology import card_path, worst_gpu_path
from parastrat.rules.backend import backend_between_nodes

if TYPE_CHECKING:
    from parastrat.machine import Machine
    from parastrat.rules.backend import BackendDecision

#: the NCCL plugin of each network that needs one, by the name that its vendor distributes it under
_PLUGINS = {
    NetworkKind.EFA: "aws-ofi-nccl",
    NetworkKind.SLINGSHOT: "aws-ofi-nccl",
    NetworkKind.TCPX: "nccl-plugin-gpudirecttcpx",
}
#: the backend, if another one, that a row of the backend table falls back to
FALLBACKS = {
    "npu": Backend.GLOO,
    "hpu": Backend.GLOO,
    "xpu": Backend.GLOO,
    "rocm": Backend.GLOO,
    "gpu_wsl": Backend.GLOO,
    "gpu_single": Backend.GLOO,
    "gpu_eth": Backend.GLOO,
    "gpu_unknown": Backend.GLOO,
    "cpu_ib_ipoib": Backend.MPI,
    "cpu_ib_noipoib": Backend.GLOO,
    "cpu_ib_unknown": Backend.MPI,
    "cpu_eth": Backend.MPI,
    "cpu_unknown": Backend.MPI,
}


def summary(machine: Machine, hardware: Hardware | None) -> dict[str, Any]:
    """Return the facts of a host as plain values; what cannot be known is None, never absent.

    Args:
        machine: as it was read.
        hardware: made of it; None where no profile describes its accelerators.
    """
    host, network, gpus = machine.host, machine.network, machine.gpus
    decision = between_nodes(machine, hardware)
    kind = machine.fabric or (hardware.scale_up_kind if hardware else None)
    node = _gbit(network.node_bits_per_s)
    return {
        "gpus": None if machine.trouble else len(gpus),
        "vendor": gpus[0].vendor.value if gpus else None,
        "gfx": gpus[0].compute_capability if gpus and gpus[0].vendor is Vendor.AMD else None,
        "gpu_fabric": None if machine.trouble or kind is None else kind.value,
        "nvlink_per_gpu": _common_links(machine),
        "scale_up_domain": machine.scale_up_domain,
        "gpu_gpu_path": worst_gpu_path(machine.topology),
        "nic_gpu_path": card_path(machine.topology),
        "network": network.kind.value,
        "per_node_gbps": node,
        "per_gpu_gbps": node // len(gpus) if node is not None and gpus else None,
        "efa_devices": len(network.compute_hcas) if network.kind is NetworkKind.EFA else 0,
        "compute_hcas": None if machine.excluded_hcas is None else list(network.compute_hcas),
        "exclude_hcas": None if machine.excluded_hcas is None else list(machine.excluded_hcas),
        "roce_v2_gid_index": machine.roce_v2_gid_index,
        "gdr": machine.gdr.value,
        "ipoib": network.ipoib,
        "socket_ifname": network.socket_ifname,
        "backend": decision.backend.value if decision.backend else None,
        "backend_fallback": _value(FALLBACKS.get(decision.row)),
        "backend_library": _library(machine, decision),
        "needs_plugin": plugin_of(machine),
        "env": dict(decision.env),
        "numa_nodes": host.numa_nodes,
        "cpus_effective": host.cores,
        "mem_limit_bytes": host.memory_bytes,
        "shm_bytes": host.shm_bytes,
        "cloud": host.cloud,
        "warn": [hazard.what for hazard in machine.hazards],
    }


def between_nodes(machine: Machine, hardware: Hardware | None) -> BackendDecision:
    """Return the backend of a job over several such hosts."""
    return backend_between_nodes(hardware or _without_figures(machine))


def plugin_of(machine: Machine) -> str | None:
    """Return the package that the collectives of a host's GPUs need on its network."""
    on_gpus = bool(machine.gpus) and machine.gpus[0].type is DeviceType.CUDA
    return _PLUGINS.get(machine.network.kind) if on_gpus else None


def _without_figures(machine: Machine) -> Hardware:
    """Return what the backend table asks of hardware; it reads kinds and names, and no figure."""
    gpu = machine.gpus[0] if machine.gpus else None
    none = Rates()
    return Hardware(
        name="undescribed",
        device=Device(
            name="undescribed",
            vendor=gpu.vendor if gpu else Vendor.CPU,
            type=gpu.type if gpu else DeviceType.CPU,
            memory_bytes=0,
            usable_memory_bytes=0,
            memory_bytes_per_s=0.0,
            peak=none,
            sustained=none,
            matmul=MatmulCurve(ceiling=0.0, m_half=0.0, n_half=0.0, k_half=0.0),
            bf16_native=False,
            launch_s=0.0,
        ),
        devices_per_node=max(1, len(machine.gpus)),
        num_nodes=1,
        scale_up_devices=max(1, len(machine.gpus)),
        scale_up_kind=machine.fabric or FabricKind.NONE,
        scale_up=None,
        scale_out=None,
        host=Host(system=machine.host.system),
        network=machine.network,
    )


def _common_links(machine: Machine) -> int | None:
    """Return the NVLinks of each GPU where all have as many; None for other vendors' accelerators."""
    if not machine.gpus or machine.gpus[0].vendor is not Vendor.NVIDIA:
        return None
    links = {gpu.nvlinks for gpu in machine.gpus}
    return links.pop() if len(links) == 1 else None


def _library(machine: Machine, decision: BackendDecision) -> str | None:
    if decision.backend is not Backend.NCCL:
        return None
    return "rccl" if machine.gpus and machine.gpus[0].vendor is Vendor.AMD else "nccl"


def _gbit(bits_per_s: float | None) -> int | None:
    return None if bits_per_s is None else int(bits_per_s / 1e9)


def _value(backend: Backend | None) -> str | None:
    return None if backend is None else backend.value
