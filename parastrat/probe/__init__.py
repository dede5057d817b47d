"""The machine that parastrat runs on, or a recorded one, as hardware. Never imports torch."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import Hardware, Host, NetworkKind
from parastrat.probe.accelerators import gpu_hardware
from parastrat.probe.job import nodes_of_job
from parastrat.probe.reading import read_machine
from parastrat.profiles import cpu_hardware
from parastrat.profiles.nodes import with_ranks
from parastrat.units import GIB

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.hardware import Network
    from parastrat.machine import HostFacts, Machine

__all__ = ["hardware_of", "probe_hardware", "read_machine"]


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
    num_nodes = nodes_of_job(os.environ) if root is None else 1
    return hardware_of(read_machine(root), ranks_per_node=ranks_per_node, num_nodes=num_nodes)


def hardware_of(machine: Machine, *, ranks_per_node: int | None = None, num_nodes: int = 1) -> Hardware:
    """Return the hardware that so many hosts like this one are.

    Raises:
        ProbeError: for cores or memory that are not stated, a driver in trouble, or accelerators that
            no profile describes.
        ProfileError: for a number of ranks that the host cannot have.
    """
    if machine.trouble is not None:
        raise ProbeError(
            machine.trouble,
            hint="look at the driver (nvidia-smi), or name the hardware with --on; "
            "--on cpu plans for the processors alone",
        )
    host, network = machine.host, machine.network
    if not machine.gpus:
        return _processes(host, network, ranks_per_node=ranks_per_node, num_nodes=num_nodes)
    hardware = gpu_hardware(machine.gpus, num_nodes, network)
    name = _name(f"{len(machine.gpus)} x {hardware.device.name}", num_nodes)
    hardware = replace(hardware, name=name, host=_host(host))
    return hardware if ranks_per_node is None else with_ranks(hardware, ranks_per_node)


def _processes(
    host: HostFacts, network: Network, *, ranks_per_node: int | None, num_nodes: int
) -> Hardware:
    if host.cores is None or host.memory_bytes is None:
        missing = "number of cores" if host.cores is None else "size of the memory"
        raise ProbeError(f"the {missing} is not stated", hint="name the hardware with --on")
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
    where = f"{'on' if ranks <= host.cores else 'that share'} {host.cores} cores"
    described = f"{processes} {where}, {host.memory_bytes / GIB:.1f} GiB"
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
