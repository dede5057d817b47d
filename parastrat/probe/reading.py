"""A whole host, read once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import DeviceType, Vendor
from parastrat.machine import Machine
from parastrat.probe.accelerators import domain_size, fabric
from parastrat.probe.amd import read_amd_gpus
from parastrat.probe.files import LIVE, entries, is_folder
from parastrat.probe.hazards import hazards_of
from parastrat.probe.host import read_host
from parastrat.probe.network import read_network
from parastrat.probe.nvml import GpuFacts, read_gpus
from parastrat.probe.pci import place_at, read_pci_accelerators, read_width
from parastrat.probe.topology import topology_of

if TYPE_CHECKING:
    from pathlib import Path

    from parastrat.machine import Gpu

#: signs of a driver that is loaded, by torch's type of its devices
_DRIVERS = {
    DeviceType.CUDA: ("sys/module/nvidia", "proc/driver/nvidia"),
    DeviceType.XPU: ("sys/module/xe", "sys/module/i915"),
    DeviceType.HPU: ("sys/module/habanalabs", "sys/class/habanalabs", "sys/class/accel"),
}


def read_machine(root: Path | None = None) -> Machine:
    """Read a host: its accelerators, its network, its limits.

    Args:
        root: of a recorded host (``sys/``, ``proc/``, ``nvml.json``); None: this machine.

    Raises:
        ProbeError: for a folder that is no recorded host, and files that are there and cannot be read.
    """
    place = root or LIVE
    if not any(is_folder(place, name) for name in ("sys", "proc")):
        raise ProbeError(
            f"{place} is no recorded host", hint="a recorded host has the folders sys and proc"
        )
    host = read_host(place)
    found = _accelerators(place)
    gpus = tuple(_with_sysfs(place, gpu) for gpu in found.gpus)
    network = read_network(place, gpus)
    kind = fabric(gpus)
    places = [place_at(place, gpu.bus_id) for gpu in gpus]
    machine = Machine(
        host=host,
        gpus=gpus,
        trouble=found.trouble,
        fabric=kind,
        cards=network.cards,
        interfaces=network.interfaces,
        network=network.network,
        excluded_hcas=network.excluded_hcas,
        scale_up_domain=domain_size(gpus, kind),
        gdr=network.gdr,
        roce_v2_gid_index=network.roce_v2_gid_index,
        socket_is_assumed=network.socket_is_assumed,
        imex=_has_imex(place),
        topology=topology_of(gpus, places, kind, network, host.numa_nodes),
    )
    return replace(machine, hazards=hazards_of(machine))


def _accelerators(root: Path) -> GpuFacts:
    """Return NVIDIA's, else AMD's, else what PCIe shows of others."""
    found = read_gpus(root)
    if found.gpus or found.trouble is not None:
        return found
    gpus = read_amd_gpus(root)
    return GpuFacts(gpus=gpus or _without_driver(root))


def _without_driver(root: Path) -> tuple[Gpu, ...]:
    """Return accelerators whose driver is loaded and was not asked, or has nothing to ask.

    On this machine NVIDIA's was asked: what a container sees of its host's PCIe it may still not use.
    """
    return tuple(
        gpu
        for gpu in read_pci_accelerators(root)
        if any(is_folder(root, sign) for sign in _DRIVERS[gpu.type])
        and not (root == LIVE and gpu.vendor is Vendor.NVIDIA)
    )


def _has_imex(root: Path) -> bool | None:
    """Return whether a process may export memory to other hosts of an NVLink domain.

    None where a record does not say; records keep devices under a name of their own.
    """
    folder = "nvidia-caps-imex-channels"
    if entries(root, f"dev/{folder}") or entries(root, f"dev_{folder}"):
        return True
    return False if is_folder(root, "dev") else None


def _with_sysfs(root: Path, gpu: Gpu) -> Gpu:
    """Complete what the driver did not tell of a GPU's place."""
    place = place_at(root, gpu.bus_id)
    width, most = (gpu.pcie_width, gpu.pcie_width_max)
    if width is None or most is None:
        width, most = read_width(root, place)
    node = gpu.numa_node if gpu.numa_node is not None or place is None else place.numa_node
    return replace(gpu, numa_node=node, pcie_width=width, pcie_width_max=most)
