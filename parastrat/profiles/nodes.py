"""Node and link profiles to hardware values."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

from parastrat.errors import ProfileError
from parastrat.hardware import (
    CollectiveCurve,
    CollectiveCurves,
    Device,
    FabricKind,
    FigureKind,
    Hardware,
    Host,
    HostSystem,
    Link,
    Network,
    NetworkKind,
)
from parastrat.profiles.devices import Fields, read_device, read_values
from parastrat.profiles.files import ProfileFile, read_profile
from parastrat.units import GB, GIB, MEGA, MICRO, scaled

LINK: Fields = {
    "nominal_gb_per_s": ("nominal_bytes_per_s", GB),
    "gb_per_s": ("bytes_per_s", GB),
    "latency_us": ("latency_s", MICRO),
    "all_reduce_gain": ("all_reduce_gain", 1.0),
}
#: what the collectives were measured over
_NVLINKS = (FabricKind.NVSWITCH, FabricKind.NVLINK, FabricKind.NVLINK_DOMAIN)
_OF_A_CURVE = (
    "start_us",
    "hop_us",
    "ramp_us",
    "ramp_mb",
    "share_of_two",
    "share_of_four",
    "share_of_eight",
)
_HOST_COUNTS: Fields = {
    "cores": ("cores", 1),
    "memory_gib": ("memory_bytes", GIB),
    "numa_nodes": ("numa_nodes", 1),
    "memory_gb_per_s": ("memory_bytes_per_s", GB),
}


def read_link(file: ProfileFile, section: str) -> Link | None:
    """Return one of a node's links; None when the profile has none.

    Raises:
        ProfileError: for a link that is incomplete.
    """
    keys = file.section(section).keys() - {"kind", "devices"}
    if not keys:
        return None
    for key in sorted(LINK.keys() - {"all_reduce_gain"} - keys):
        raise file.error(f"{section}.{key} is missing")
    for key in sorted(keys - LINK.keys()):
        raise file.error(f"unknown key {section}.{key}")
    values, provenance = read_values(file, section, LINK)
    return Link(provenance=provenance, **values)


def read_network(file: ProfileFile) -> Network:
    """Return a node's network; what the profile does not state is None, unknown."""
    section = file.section("network")
    rate = file.number("network.node_gbit_per_s") if "node_gbit_per_s" in section else None
    return Network(
        kind=NetworkKind(file.figure("network.kind").value) if "kind" in section else NetworkKind.UNKNOWN,
        node_bits_per_s=None if rate is None else rate * GB,
        gpudirect=bool(file.figure("network.gpudirect").value) if "gpudirect" in section else None,
    )


def read_host(file: ProfileFile) -> Host:
    """Return a node's processor side; what the profile does not state is None, unknown."""
    values, _ = read_values(file, "host", _HOST_COUNTS)
    system = HostSystem(file.figure("host.system").value) if "system" in file.section("host") else None
    return Host(system=system, **values)


def read_node(file: ProfileFile, device: Device, num_nodes: int) -> Hardware:
    """Make a cluster of equal nodes of a node's profile.

    Raises:
        ProfileError: for a profile that is incomplete.
    """
    counts = (file.table.get("devices_per_node"), file.section("scale_up").get("devices"))
    devices_per_node, scale_up_devices = counts
    if not (isinstance(devices_per_node, int) and isinstance(scale_up_devices, int)):
        raise file.error("devices_per_node and scale_up.devices must be whole numbers")
    name = file.text("name")
    kind = FabricKind(file.section("scale_up").get("kind", "unstated"))
    scale_up = read_link(file, "scale_up")
    if scale_up is not None and kind in _NVLINKS:
        scale_up = replace(scale_up, curves=_curves_of_nccl())
    return Hardware(
        name=named(name, num_nodes),
        device=device,
        devices_per_node=devices_per_node,
        num_nodes=num_nodes,
        scale_up_devices=scale_up_devices,
        scale_up_kind=kind,
        scale_up=scale_up,
        scale_out=read_link(file, "scale_out"),
        host=read_host(file),
        network=read_network(file),
    )


@cache
def _curves_of_nccl() -> CollectiveCurves:
    """Return how NCCL's collectives go over NVLink, as ``scripts/fit_collectives.py`` wrote it."""
    file = read_profile("collectives", "nccl")
    if file is None:
        raise ProfileError(
            "the installation lacks profiles/collectives/nccl.toml", hint="reinstall parastrat"
        )
    return CollectiveCurves(**{field.name: _curve(file, field.name) for field in fields(CollectiveCurves)})


def _curve(file: ProfileFile, section: str) -> CollectiveCurve:
    values = file.section(section)
    absent = [name for name in _OF_A_CURVE if not isinstance(values.get(name), int | float)]
    if absent:
        raise file.error(f"{section}.{absent[0]} is missing")
    return CollectiveCurve(
        start_s=scaled(values["start_us"], MICRO),
        hop_s=scaled(values["hop_us"], MICRO),
        ramp_s=scaled(values["ramp_us"], MICRO),
        ramp_bytes=scaled(values["ramp_mb"], MEGA),
        share_of_two=values["share_of_two"],
        share_of_four=values["share_of_four"],
        share_of_eight=values["share_of_eight"],
    )


def named(name: str, num_nodes: int) -> str:
    """Return a cluster's name as a user would write it."""
    return name if num_nodes == 1 else f"{name}:{num_nodes}"


def generic_node(device: ProfileFile, per_node: int, num_nodes: int) -> Hardware:
    """Make nodes of so many devices, whose links are assumed as in the device's usual machine.

    Host and network are unknown. Links are per device, so that they hold for any number of devices.
    """
    typical = read_profile("nodes", device.text("typical_node"))
    if typical is None:
        raise device.error(f"typical_node {device.text('typical_node')!r} is not in profiles/nodes")
    model = read_node(typical, read_device(device), num_nodes)
    own_domain = model.scale_up_kind is FabricKind.NVLINK_DOMAIN
    alone = per_node == 1 and not own_domain
    return replace(
        model,
        name=named(f"{device.text('name')}x{per_node}", num_nodes),
        devices_per_node=per_node,
        scale_up_devices=model.scale_up_devices * per_node // model.devices_per_node,
        scale_up_kind=FabricKind.NONE if alone else model.scale_up_kind,
        scale_up=None if alone else _assumed(model.scale_up, typical.text("name")),
        scale_out=_assumed(model.scale_out, typical.text("name")),
        host=Host(),
        network=Network(kind=NetworkKind.UNKNOWN),
    )


def _assumed(link: Link | None, node: str) -> Link | None:
    """Return a link whose figures are assumed, because another machine has them."""
    if link is None:
        return None
    provenance = tuple(
        replace(entry, kind=FigureKind.ASSUMED, source=f"assumed as in {node}: {entry.source}")
        for entry in link.provenance
    )
    return replace(link, provenance=provenance)


def with_ranks(hardware: Hardware, ranks: int) -> Hardware:
    """Run so many ranks on each node: fewer than devices leave some idle, more share them evenly.

    Raises:
        ProfileError: for a number below 1, one that does not share the devices evenly, or devices that
            other ranks share already.
    """
    if ranks == hardware.devices_per_node:
        return hardware
    physical = hardware.devices_per_node
    if hardware.accelerators_per_node is not None:
        raise ProfileError(
            f"{hardware.name} already runs {physical} ranks on {hardware.accelerators_per_node} devices",
            hint="leave --ranks-per-node out, or probe again",
        )
    if ranks < 1 or (ranks > physical and ranks % physical):
        raise ProfileError(
            f"{ranks} ranks cannot share the {physical} devices of a node evenly",
            hint=f"use --ranks-per-node {physical}, fewer, or a multiple of it",
        )
    scale_up_devices = max(1, hardware.scale_up_devices * ranks // hardware.devices_per_node)
    kept = replace(hardware, devices_per_node=ranks, scale_up_devices=scale_up_devices)
    if ranks <= physical:
        return kept
    share = ranks // physical
    return replace(
        kept,
        accelerators_per_node=physical,
        device=_shared_device(hardware.device, share),
        scale_up=_shared_link(hardware.scale_up, share),
        scale_out=_shared_link(hardware.scale_out, share),
    )


def _shared_device(device: Device, ranks: int) -> Device:
    return replace(
        device,
        memory_bytes=device.memory_bytes // ranks,
        usable_memory_bytes=device.usable_memory_bytes // ranks,
        memory_bytes_per_s=device.memory_bytes_per_s / ranks,
        host_bytes_per_s=device.host_bytes_per_s and device.host_bytes_per_s / ranks,
        peak=device.peak.times(1 / ranks),
        sustained=device.sustained.times(1 / ranks),
    )


def _shared_link(link: Link | None, ranks: int) -> Link | None:
    if link is None:
        return None
    nominal, achieved = link.nominal_bytes_per_s / ranks, link.bytes_per_s / ranks
    return replace(link, nominal_bytes_per_s=nominal, bytes_per_s=achieved)
