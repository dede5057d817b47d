"""Hosts without accelerators: a device is a process that has its even share of the cores and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from parastrat.errors import ProfileError
from parastrat.hardware import (
    Device,
    DeviceType,
    FabricKind,
    FigureKind,
    Hardware,
    Host,
    HostSystem,
    Link,
    MatmulCurve,
    Network,
    NetworkKind,
    Provenance,
    Rates,
    Vendor,
)
from parastrat.profiles.files import ProfileFile, read_profile
from parastrat.profiles.nodes import named, read_link
from parastrat.units import GB, MICRO


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShare:
    """What the processes of one host share."""

    cores: int
    memory_bytes: int
    numa_nodes: int


def cpu_hardware(  # noqa: PLR0913 - one host's facts; each caller has exactly these
    *,
    cores: int,
    memory_bytes: int,
    numa_nodes: int,
    ranks_per_node: int | None,
    num_nodes: int,
    network: Network | None,
    name: str,
) -> Hardware:
    """Make a cluster of processes of equal hosts.

    Args:
        cores: physical or logical cores of one host that may be used.
        memory_bytes: of one host.
        numa_nodes: of one host.
        ranks_per_node: processes on one host; None: one for each NUMA node. More than cores share them.
        num_nodes: hosts.
        network: between the hosts; None: as the ``cpu`` profile assumes.
        name: of one host, without the number of nodes.

    Raises:
        ProfileError: for fewer processes than one.
    """
    ranks = min(numa_nodes, cores) if ranks_per_node is None else ranks_per_node
    if ranks < 1:
        raise ProfileError(
            f"{ranks} processes on {cores} cores: there is nothing to train on",
            hint=f"use --ranks-per-node {cores}",
        )
    device, node = _profile("devices"), _profile("nodes")
    share = HostShare(cores=cores, memory_bytes=memory_bytes, numa_nodes=numa_nodes)
    return Hardware(
        name=named(name, num_nodes),
        device=_process(device, share, ranks),
        devices_per_node=ranks,
        num_nodes=num_nodes,
        scale_up_devices=ranks,
        scale_up_kind=FabricKind.NONE,
        scale_up=read_link(node, "scale_up") if ranks > 1 else None,
        scale_out=_scale_out(node, network, ranks),
        host=Host(cores=cores, memory_bytes=memory_bytes, numa_nodes=numa_nodes, system=HostSystem.LINUX),
        network=network or _assumed_network(node),
    )


def this_host(root: Path = Path("/")) -> HostShare:
    """Read the cores, memory and NUMA nodes that a process may use here, as ``parastrat probe`` reads them.

    Raises:
        ProfileError: where the system does not say.
        ProbeError: for what is present and cannot be read.
    """
    # the probe makes hardware of profiles, and so imports them
    from parastrat.probe.host import read_cores, read_memory_bytes, read_numa_nodes  # noqa: PLC0415

    cores, memory_bytes = read_cores(root), read_memory_bytes(root)
    if cores is None or memory_bytes is None:
        raise ProfileError(
            f"the {'cores' if cores is None else 'memory'} of this host cannot be read",
            hint="name a file of `parastrat probe -o FILE` instead of cpu",
        )
    return HostShare(cores=cores, memory_bytes=memory_bytes, numa_nodes=read_numa_nodes(root) or 1)


def _profile(folder: str) -> ProfileFile:
    file = read_profile(folder, "cpu")
    if file is None:
        raise ProfileError(f"the installation lacks profiles/{folder}/cpu.toml", hint="reinstall parastrat")
    return file


def _process(file: ProfileFile, host: HostShare, ranks: int) -> Device:
    """Return one process with its share of a host's cores and memory."""
    cores = host.cores // ranks or host.cores / ranks
    memory_bytes = host.memory_bytes // ranks
    peak = file.number("core.peak_gflops") * GB * cores
    bf16 = peak * file.number("core.bf16_share")
    share = file.number("core.sustained_share")
    figures = {
        "usable_memory_bytes": "process.usable_memory_share",
        "memory_bytes_per_s": "core.memory_gb_per_s",
        "peak.fp32": "core.peak_gflops",
        "peak.bf16": "core.bf16_share",
        "sustained": "core.sustained_share",
        "launch_s": "process.launch_us",
        "attention_efficiency": "process.attention_efficiency",
        "matmul": "matmul.ceiling",
    }
    source = f"1/{ranks} of the host's memory"
    return Device(
        name=file.text("name"),
        vendor=Vendor(file.text("vendor")),
        type=DeviceType(file.text("type")),
        memory_bytes=memory_bytes,
        usable_memory_bytes=int(memory_bytes * file.number("process.usable_memory_share")),
        memory_bytes_per_s=file.number("core.memory_gb_per_s") * GB * cores,
        peak=Rates(fp32=peak, bf16=bf16),
        sustained=Rates(fp32=peak * share, bf16=bf16 * share),
        matmul=MatmulCurve(
            ceiling=file.number("matmul.ceiling"),
            m_half=file.number("matmul.m_half"),
            n_half=file.number("matmul.n_half"),
            k_half=file.number("matmul.k_half"),
        ),
        bf16_native=bool(file.table.get("bf16_native")),
        launch_s=file.number("process.launch_us") * MICRO,
        attention_efficiency=file.number("process.attention_efficiency"),
        provenance=(
            Provenance(field="memory_bytes", kind=FigureKind.MEASURED, source=source),
            *(file.figure(key).provenance(field) for field, key in figures.items()),
        ),
    )


def _assumed_network(node: ProfileFile) -> Network:
    return Network(
        kind=NetworkKind(node.figure("network.kind").value),
        node_bits_per_s=node.number("scale_out.node_gbit_per_s") * GB,
    )


def _scale_out(node: ProfileFile, network: Network | None, ranks: int) -> Link:
    """Return a process's share of the host's network, never faster than Gloo on one host."""
    stated = network.node_bits_per_s if network else None
    assumed = node.figure("scale_out.node_gbit_per_s")
    bits_per_s = stated or node.number("scale_out.node_gbit_per_s") * GB
    measured = replace(assumed, kind=FigureKind.MEASURED, source="the host's network card")
    rate = assumed if stated is None else measured
    share = node.figure("scale_out.achieved_share")
    nominal = bits_per_s / 8 / ranks
    gloo = node.number("scale_up.gb_per_s") * GB
    return Link(
        nominal_bytes_per_s=nominal,
        bytes_per_s=min(nominal * node.number("scale_out.achieved_share"), gloo),
        latency_s=node.number("scale_out.latency_us") * MICRO,
        provenance=(
            rate.provenance("nominal_bytes_per_s"),
            replace(share, kind=FigureKind.DERIVED).provenance("bytes_per_s"),
            node.figure("scale_out.latency_us").provenance("latency_s"),
        ),
    )
