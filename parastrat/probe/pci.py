"""PCIe devices by their place, and the accelerators among them that no driver was asked for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType, Vendor
from parastrat.machine import Gpu, PciPath, PciPlace
from parastrat.probe.files import base, entries, followed, read_int, read_text

if TYPE_CHECKING:
    from pathlib import Path

_DEVICES = "sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
#: PCI class codes: display controllers, and those without a screen
_DISPLAY, _WITHOUT_SCREEN = "0x03", "0x0380"
#: Linux drivers/accel/habanalabs, and Habana's user library
_GAUDIS = {"0x1020": "Gaudi2", "0x1021": "Gaudi2", "0x1060": "Gaudi3", "0x1063": "Gaudi3"}
#: vendor -> vendor, torch's device type, class
_KINDS = {
    "0x10de": (Vendor.NVIDIA, DeviceType.CUDA, _DISPLAY),
    # the graphics of a processor or a laptop drive a screen: torch.xpu alone knows whether it serves
    "0x8086": (Vendor.INTEL, DeviceType.XPU, _WITHOUT_SCREEN),
    # Habana Labs, which makes nothing else
    "0x1da3": (Vendor.INTEL, DeviceType.HPU, ""),
}


def sysfs_address(address: object) -> str | None:
    """Return a PCI address as sysfs writes it; NVML's has eight digits of domain, in capitals."""
    if not isinstance(address, str):
        return None
    if not _ADDRESS.fullmatch(address.lower()):
        return None
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def place_of(root: Path, path: str | None) -> PciPlace | None:
    """Return the place of the PCIe device that a sysfs path leads to or through; None for another kind."""
    real = None if path is None else followed(root, path)
    if real is None:
        return None
    parts = real.split("/")
    last = max((at for at, part in enumerate(parts) if _ADDRESS.fullmatch(part)), default=None)
    first = next((at for at, part in enumerate(parts) if _BRIDGE.fullmatch(part)), None)
    if last is None or first is None:
        return None
    node = read_int(root, "/".join((*parts[: last + 1], "numa_node")))
    chain = tuple(parts[first : last + 1])
    return PciPlace(chain=chain, numa_node=node if node is not None and node >= 0 else None)


def place_at(root: Path, address: str | None) -> PciPlace | None:
    """Return the place of a device by its address; None where it is unknown."""
    return None if address is None else place_of(root, f"{_DEVICES}/{address}")


def path_between(one: PciPlace | None, other: PciPlace | None, numa_nodes: int | None) -> PciPath | None:
    """Return how two devices reach each other; None where their places or NUMA nodes are unknown.

    A switch is two bridges in sysfs: the port towards the processor, which devices behind it share, and one
    port for each device. So one bridge apiece below what they share is one switch.
    Source: the legend of ``nvidia-smi topo -m``.
    """
    if one is None or other is None:
        return None
    shared = 0
    for left, right in zip(one.chain, other.chain, strict=False):
        if left != right:
            break
        shared += 1
    if shared > 1:
        bridges = max(len(one.chain), len(other.chain)) - shared - 1
        return PciPath.PIX if bridges <= 1 else PciPath.PXB
    if shared == 1:
        return PciPath.PHB
    if numa_nodes == 1:
        return PciPath.NODE
    if one.numa_node is None or other.numa_node is None:
        return None
    return PciPath.NODE if one.numa_node == other.numa_node else PciPath.SYS


def order_of(place: PciPlace | None) -> tuple[int, ...]:
    """Return what sorts devices as the bus numbers them; those without a place come last."""
    if place is None:
        return (2**32,)
    return tuple(int(part, 16) for part in re.split(r"[:.]", place.address))


def read_width(root: Path, place: PciPlace | None) -> tuple[int | None, int | None]:
    """Return the lanes that a device's link has now, and those that it could have."""
    if place is None:
        return None, None
    folder = f"{_DEVICES}/{place.address}"
    now, most = (read_int(root, f"{folder}/{name}_link_width") for name in ("current", "max"))
    return (now, most) if now and most and 0 < now <= 32 and most <= 32 else (None, None)


def read_pci_accelerators(root: Path) -> tuple[Gpu, ...]:
    """Return accelerators by their PCI vendor and class alone, without memory and name.

    sysfs cannot tell whether torch can use them.
    """
    found = []
    for entry in entries(root, _DEVICES):
        address, vendor = base(entry), read_text(root, f"{entry}/vendor") or ""
        kind = _KINDS.get(vendor)
        if kind is not None and (read_text(root, f"{entry}/class") or "").startswith(kind[2]):
            place = place_of(root, entry)
            found.append(
                Gpu(
                    name=_GAUDIS.get(read_text(root, f"{entry}/device") or "")
                    if kind[1] is DeviceType.HPU
                    else None,
                    vendor=kind[0],
                    type=kind[1],
                    nvlinks=None,
                    bus_id=address,
                    numa_node=None if place is None else place.numa_node,
                )
            )
    return tuple(found)
