"""The machine that parastrat runs on, or a recorded one, as hardware. Never imports torch."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import Hardware, Host, NetworkKind
from parastrat.probe.accelerators import gpu_hardware, refuse_other_accelerators
from parastrat.probe.host import LIVE, read_host
from parastrat.probe.job import nodes_of_job
from parastrat.probe.network import read_network
from parastrat.probe.nvml import read_gpus
from parastrat.profiles import cpu_hardware
from parastrat.profiles.nodes import with_ranks
from parastrat.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.hardware import Network
    from parastrat.probe.host import HostFacts

__all__ = ["probe_hardware"]


def probe_hardware(*, ranks_per_node: int | None = None, root: Path | None = None) -> Hardware:
    """Return this machine's hardware, times the nodes of the job that it runs in.

    On a host without accelerators a device is a process, with its share of the cores and the memory.

    Args:
        ranks_per_node: processes on a node; None: one a GPU, and on CPU hosts one a NUMA node.
        root: of a recorded host (``sys/``, ``proc/``, ``nvml.json``), which is one node; None: this one.

    Raises:
        ProbeError: for what is present and cannot be read, or GPUs that no profile describes.
        ProfileError: for a number of ranks that the host cannot have.
    """
    place = root or LIVE
    num_nodes = nodes_of_job(os.environ) if root is None else 1
    host = read_host(place)
    found = read_gpus(place)
    if found.trouble is not None:
        raise ProbeError(
            found.trouble,
            hint="look at the driver (nvidia-smi), or name the hardware with --on; "
            "--on cpu plans for the processors alone",
        )
    network = read_network(place, accelerators=len(found.gpus))
    if not found.gpus:
        refuse_other_accelerators(place)
        return _processes(host, network, ranks_per_node=ranks_per_node, num_nodes=num_nodes)
    hardware = gpu_hardware(found.gpus, num_nodes, network)
    name = _name(f"{len(found.gpus)} x {hardware.device.name}", num_nodes)
    hardware = replace(hardware, name=name, host=_host(host))
    return hardware if ranks_per_node is None else with_ranks(hardware, ranks_per_node)


def _processes(
    host: HostFacts, network: Network, *, ranks_per_node: int | None, num_nodes: int
) -> Hardware:
    unstated = network.kind in {NetworkKind.UNKNOWN, NetworkKind.NONE}
    hardware = cpu_hardware(
        cores=host.cores,
        memory_bytes=host.memory_bytes,
        numa_nodes=host.numa_nodes or 1,
        ranks_per_node=ranks_per_node,
        num_nodes=num_nodes,
        network=None if unstated else network,
        name="auto",
    )
    ranks = hardware.devices_per_node
    processes = "1 CPU process" if ranks == 1 else f"{ranks} CPU processes"
    described = f"{processes} on {host.cores} cores, {host.memory_bytes / GIB:.1f} GiB"
    return replace(hardware, name=_name(described, num_nodes), network=network, host=_host(host))


def _host(host: HostFacts) -> Host:
    return Host(
        cores=host.cores,
        memory_bytes=host.memory_bytes,
        numa_nodes=host.numa_nodes,
        system=host.system,
    )


def _name(node: str, num_nodes: int) -> str:
    return f"auto: {node}" if num_nodes == 1 else f"auto: {num_nodes} nodes of {node}"
