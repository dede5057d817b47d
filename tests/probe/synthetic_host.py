"""Hosts that are made for a question: folders as the kernel lays them out, with real links."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parastrat.errors import ParastratError
from parastrat.machine import Machine
from parastrat.probe import hardware_of, read_machine
from parastrat.probe.summary import summary

#: name, MiB, compute capability
A100 = ("NVIDIA A100-SXM4-40GB", 40960, (8, 0))
A100_PCIE = ("NVIDIA A100 80GB PCIe", 81920, (8, 0))
H100 = ("NVIDIA H100 80GB HBM3", 81559, (9, 0))
H200 = ("NVIDIA H200", 143771, (9, 0))
B200 = ("NVIDIA B200", 183359, (10, 0))
V100 = ("Tesla V100-SXM2-32GB", 32768, (7, 0))
L40S = ("NVIDIA L40S", 46068, (8, 9))
RTX_4090 = ("NVIDIA GeForce RTX 4090", 24564, (8, 9))
GH200 = ("NVIDIA GH200 480GB", 97871, (9, 0))


@dataclass(slots=True)
class SyntheticHost:
    """A host that grows by the call; devices hang below ``pciDDDD:BB/`` and the bridges that are named."""

    root: Path
    gpus: list[dict[str, Any]] = field(default_factory=list)
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.write("sys/devices/system/cpu/online", "0-63")
        self.write("sys/devices/system/node/online", "0-1")
        self.write("proc/meminfo", "MemTotal:       1048576000 kB")
        self.write("proc/mounts", "tmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0")
        self.write("proc/self/limits", "Max locked memory         unlimited            unlimited   bytes")

    def write(self, name: str, text: object) -> None:
        """Write one file, in place of an older one."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def link(self, name: str, target: str) -> None:
        """Link one name below the root to another."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(Path(*[".."] * (name.count("/"))) / target)

    def pci(self, bridges: str, address: str, *, numa: int = 0, **attributes: object) -> str:
        """Add a device; return its folder."""
        folder = f"sys/devices/{bridges}/0000:{address}"
        for name, value in {"numa_node": numa, **attributes}.items():
            # ``class`` is no name in Python
            self.write(f"{folder}/{name.removesuffix('_')}", value)
        self.link(f"sys/bus/pci/devices/0000:{address}", folder)
        return folder

    def gpu(
        self,
        kind: tuple[str, int, tuple[int, int]],
        bridges: str,
        address: str,
        numa: int = 0,
        **facts: Any,
    ) -> None:
        """Add a GPU that NVML tells of; ``facts`` are keys of its record."""
        self.pci(bridges, address, numa=numa, vendor="0x10de", class_="0x030200")
        name, mib, capability = kind
        self.gpus.append(
            {
                "name": name,
                "uuid": f"GPU-{len(self.gpus)}",
                "memory_total_bytes": mib * 2**20,
                "cuda_cc": list(capability),
                "nvlink_active": 0,
                "nvlink_remote_type": None,
                "bus_id": f"00000000:{address.upper()}",
                "mig": [0, 0],
                **facts,
            }
        )

    def card(self, name: str, bridges: str, address: str, numa: int = 0, **facts: Any) -> None:
        """Add an RDMA card; ``facts`` are vendor, device, layer, state, rate, gids and net."""
        vendor, device = facts.get("vendor", "0x15b3"), facts.get("device", "0x1021")
        folder = self.pci(bridges, address, numa=numa, vendor=vendor, device=device, class_="0x020700")
        port = f"{folder}/infiniband/{name}/ports/1"
        self.write(f"{port}/link_layer", facts.get("layer", "InfiniBand"))
        self.write(f"{port}/state", facts.get("state", "4: ACTIVE"))
        self.write(f"{port}/rate", facts.get("rate", "400 Gb/sec (4X NDR)"))
        for index, (kind, address_of) in enumerate(facts.get("gids", [])):
            self.write(f"{port}/gids/{index}", address_of)
            self.write(f"{port}/gid_attrs/types/{index}", kind)
        self.link(f"{folder}/infiniband/{name}/device", folder)
        self.link(f"sys/class/infiniband/{name}", f"{folder}/infiniband/{name}")
        if "net" in facts:
            self.interface(facts["net"], folder, speed=int(facts.get("rate", "400").split()[0]) * 1000)

    def interface(self, name: str, folder: str | None = None, **facts: Any) -> str:
        """Add a network interface of a PCI device, or a virtual one; return its folder."""
        place = f"{folder}/net/{name}" if folder else f"sys/devices/virtual/net/{name}"
        self.write(f"{place}/type", facts.get("type", 1))
        self.write(f"{place}/operstate", facts.get("state", "up"))
        self.write(f"{place}/speed", facts.get("speed", 25_000))
        if folder:
            self.link(f"{place}/device", folder)
        self.link(f"sys/class/net/{name}", place)
        return place

    @property
    def machine(self) -> Machine:
        """The host as it is read."""
        if self.gpus or self.record:
            table = {"driver": "580.65.06", "gpus": self.gpus, **self.record}
            (self.root / "nvml.json").write_text(json.dumps(table))
        return read_machine(self.root)

    @property
    def summary(self) -> dict[str, Any]:
        """What the probe says of it."""
        machine = self.machine
        try:
            return summary(machine, hardware_of(machine))
        except ParastratError:
            return summary(machine, None)

    def says(self, *names: str) -> tuple[Any, ...]:
        """Some facts of the summary."""
        found = self.summary
        return tuple(found[name] for name in names)


def behind_switch(socket: int, switch: int, port: int) -> str:
    """Return the bridges of a port of a PCIe switch: two switches a socket hang on bridges of their own."""
    bus = f"{16 * (socket * 8 + switch + 1):02x}"
    return f"pci0000:{bus}/0000:{bus}:01.0/0000:{bus[0]}1:00.0/0000:{bus[0]}2:{port:02x}.0"


def eight(host: SyntheticHost, kind: Any, *, first: int = 8, **facts: Any) -> None:
    """Add eight GPUs, four a socket, each behind a switch of its own at port ``first``."""
    for at in range(8):
        bridges = behind_switch(at // 4, at % 4, first)
        host.gpu(kind, bridges, f"{bridges[-7]}9:00.0", at // 4, **facts)


def cards(host: SyntheticHost, number: int, names: str, **facts: Any) -> None:
    """Add cards behind the switches of eight GPUs, as many at each."""
    for at in range(number):
        switch, port = at * 8 // number, 1 + at % max(1, number // 8)
        bridges = behind_switch(switch // 4, switch % 4, port)
        host.card(names.format(at), bridges, f"{bridges[-7]}{port + 2:x}:00.0", switch // 4, **facts)
