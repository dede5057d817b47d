"""AMD accelerators as the kernel's KFD topology shows them.

Sources: Linux include/uapi/linux/kfd_sysfs.h (kinds of links and heaps), drivers/gpu/drm/amd/amdkfd/
kfd_topology.c (``location_id`` is bus, device and function), pci.ids (names).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from parastrat.hardware import DeviceType, Vendor
from parastrat.machine import Gpu
from parastrat.probe.files import base, entries, read_int, read_text, whole
from parastrat.probe.pci import place_at

if TYPE_CHECKING:
    from pathlib import Path

_NODES = "sys/class/kfd/kfd/topology/nodes"
_XGMI = 11
#: heaps in the device's own memory: visible to the host, and not
_DEVICE_HEAPS = frozenset({1, 2})
_NAMES = {
    0x738C: "MI100",
    0x7408: "MI250X",
    0x740C: "MI250X",
    0x740F: "MI210",
    0x74A0: "MI300A",
    0x74A1: "MI300X",
    0x74A2: "MI308X",
    0x74A5: "MI325X",
    0x74A9: "MI300X",
    0x74B5: "MI300X",
    0x74B9: "MI325X",
    0x75A0: "MI350X",
    0x75A3: "MI355X",
}
#: nodes of a host and links of a node; the largest has some tens
_MOST = 256


def read_amd_gpus(root: Path) -> tuple[Gpu, ...]:
    """Read the accelerators of the KFD topology; empty where there is none.

    A card of two dies is two accelerators, as torch sees it.
    """
    nodes = sorted(entries(root, _NODES)[:_MOST], key=lambda path: (len(path), path))
    tables = {base(node): _properties(root, node) for node in nodes}
    found = {
        node: tables[base(node)]
        for node in nodes
        if (read_int(root, f"{node}/gpu_id") or 0) > 0 and tables[base(node)].get("simd_count", 1)
    }
    addresses = {base(node): _address(table) for node, table in found.items()}
    return tuple(_gpu(root, node, table, addresses) for node, table in found.items())


def _gpu(root: Path, node: str, table: dict[str, int], addresses: dict[str, str | None]) -> Gpu:
    links = [_properties(root, link) for link in entries(root, f"{node}/io_links")[:_MOST]]
    joined = [
        str(link.get("node_to"))
        for link in links
        if link.get("type") == _XGMI and str(link.get("node_to")) in addresses
    ]
    address = addresses[base(node)]
    place = place_at(root, address)
    return Gpu(
        name=_name(table),
        vendor=Vendor.AMD,
        type=DeviceType.CUDA,
        uuid=None,
        memory_bytes=_memory(root, node),
        compute_capability=_target(table.get("gfx_target_version", 0)),
        nvlinks=len(joined) if links else None,
        nvlink_remote="GPU" if joined else None,
        peers=tuple((addresses[other] or other, joined.count(other)) for other in dict.fromkeys(joined)),
        bus_id=address,
        numa_node=None if place is None else place.numa_node,
    )


def _name(table: dict[str, int]) -> str:
    product = _NAMES.get(table.get("device_id", 0))
    return f"AMD Instinct {product}" if product else f"AMD GPU {table.get('device_id', 0):#06x}"


def _target(version: int) -> str | None:
    """Return the name of the instruction set: 90402 is gfx942, 90010 is gfx90a."""
    if version <= 0:
        return None
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _memory(root: Path, node: str) -> int | None:
    banks = [_properties(root, bank) for bank in entries(root, f"{node}/mem_banks")[:_MOST]]
    sizes = [bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in _DEVICE_HEAPS]
    total = sum(size for size in sizes if size > 0)
    return total if 0 < total < 2**63 else None


def _address(table: dict[str, int]) -> str | None:
    location, domain = table.get("location_id"), table.get("domain", 0)
    if location is None or not 0 <= location < 2**16 or not 0 <= domain < 2**32:
        return None
    return f"{domain:04x}:{location >> 8:02x}:{location >> 3 & 31:02x}.{location & 7}"


def _properties(root: Path, folder: str) -> dict[str, int]:
    """Return the lines ``name number`` of a folder's properties."""
    table = {}
    for line in (read_text(root, f"{folder}/properties") or "").splitlines():
        found = re.fullmatch(r"(\w{1,60})\s+(\S+)", line.strip())
        number = whole(found[2]) if found else None
        if found and number is not None:
            table[found[1]] = number
    return table
