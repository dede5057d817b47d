"""Names to facts: hardware, stacks and the raw tables of models, out of the shipped profiles.

One file is read for each name, never the folder, except to answer a name that is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from parastrat.errors import ProfileError
from parastrat.hardware import DeviceType, FigureKind, Hardware
from parastrat.parse.hardware_file import hardware_toml, read_hardware_file
from parastrat.parse.stack_file import read_stack_file
from parastrat.profiles.catalogue import ProfileKind, aliases_of, all_names, profile_names
from parastrat.profiles.cpu import cpu_hardware, this_host
from parastrat.profiles.details import MARK, with_detail
from parastrat.profiles.devices import read_device
from parastrat.profiles.files import ProfileFile, profiles_root, read_profile
from parastrat.profiles.guesses import joined, nearest
from parastrat.profiles.nodes import generic_node, named, read_node, with_ranks
from parastrat.records import build
from parastrat.stack import Stack

__all__ = [
    "cpu_hardware",
    "device_names",
    "hardware_toml",
    "load_hardware",
    "load_stack",
    "model_names",
    "model_table",
    "nearest",
    "node_names",
    "profiles_root",
    "read_hardware_file",
    "stack_names",
]

_GENERIC = re.compile(r"(?P<device>.+)x(?P<per_node>\d+)")
_TURNED = re.compile(r"(?P<per_node>[1-9]\d{0,3})(?:\s*[x*]\s*|\s+)(?P<device>.+)")
#: numbers of products are longer
_COUNTED = re.compile(r"(?P<device>.+)x(?P<per_node>[1-9]\d{0,2})")
#: so many names are told where none is near
_MOST_NAMES = 30
_ALIASES = "aliases"


def node_names() -> tuple[str, ...]:
    """Return the names of the node profiles, without aliases."""
    return profile_names(ProfileKind.NODES)


def device_names() -> tuple[str, ...]:
    """Return the names of the device profiles, without aliases."""
    return profile_names(ProfileKind.DEVICES)


def stack_names() -> tuple[str, ...]:
    """Return the names of the software stacks."""
    return profile_names(ProfileKind.STACKS)


def model_names() -> tuple[str, ...]:
    """Return the names of the model presets, without aliases."""
    return profile_names(ProfileKind.MODELS)


def load_hardware(ref: str, *, ranks_per_node: int | None = None) -> Hardware:
    """Return the hardware that a user named: ``NAME[:N]``, ``DEVICExM[:N]`` or ``FILE[:N]``.

    ``NAME@800g-per-node`` is a node whose network has another rate.

    Args:
        ref: a node profile or its alias, so many devices of a kind in a node, or the path of a file
            that ``probe -o`` wrote; N is the number of nodes, 1 when left out.
        ranks_per_node: processes on a node; None: one a device, and on CPU hosts one a NUMA node.

    Raises:
        ProfileError: for an unknown name (the hint has the nearest), a malformed number of nodes or
            devices, and a file that is unreadable or malformed.
    """
    name, num_nodes = _split(ref)
    if _is_path(name):
        return _stored(name, num_nodes, ranks_per_node)
    if name == DeviceType.CPU:
        host = this_host()
        return cpu_hardware(
            cores=host.cores,
            memory_bytes=host.memory_bytes,
            numa_nodes=host.numa_nodes,
            ranks_per_node=ranks_per_node,
            num_nodes=num_nodes or 1,
            network=None,
            name=name,
        )
    hardware = (
        _node(name, num_nodes or 1) or _generic(name, num_nodes or 1) or _detailed(name, num_nodes or 1)
    )
    if hardware is None:
        raise _unknown_hardware(name, num_nodes)
    return hardware if ranks_per_node is None else with_ranks(hardware, ranks_per_node)


def load_stack(ref: str) -> Stack:
    """Return a software stack by its name, or by the path of a file that ``validate -o`` wrote.

    Raises:
        ProfileError: for an unknown name (the hint has the nearest), and a profile or file that is
            unreadable or malformed.
    """
    if not _is_path(ref):
        return _stack(ref)
    change = read_stack_file(Path(ref))
    constants: dict[str, Any] = dict(change.constants)
    # by the path it is found again, where a plan file names it
    return replace(_stack(change.base), name=ref, source=change.source, **constants)


def _stack(name: str) -> Stack:
    file = _read("stacks", name)
    if file is None:
        raise ProfileError(f"unknown stack {name!r}", hint=_did_you_mean(name, stack_names()))
    try:
        return build(Stack, file.table)
    except (TypeError, ValueError) as error:
        raise file.error(str(error)) from error


def model_table(name: str) -> dict[str, Any] | None:
    """Return the raw table of a model preset or of the preset that an alias names; None when unknown.

    Raises:
        ProfileError: for a preset that cannot be read.
    """
    file = _read("models", name)
    return None if file is None else dict(file.table)


def _split(ref: str) -> tuple[str, int | None]:
    """Return the name and the number of nodes that follows the last colon."""
    name, colon, count = ref.rpartition(":")
    if not colon or "/" in count or "\\" in count:
        return ref, None
    if not (count.isascii() and count.isdigit() and int(count) > 0):
        if ref in aliases_of(ProfileKind.NODES):  # some names of published tables have a colon
            return ref, None
        raise ProfileError(
            f"{ref!r}: {count!r} is not a number of nodes", hint=f"write a whole number from 1: {name}:8"
        )
    return name, int(count)


def _is_path(name: str) -> bool:
    return "/" in name or "\\" in name or name.endswith(".toml")


def _read(folder: str, name: str) -> ProfileFile | None:
    """Read a profile by its name or by an alias of it."""
    if name == _ALIASES:
        return None
    file = read_profile(folder, name)
    if file is None:
        aliases = read_profile(folder, _ALIASES)
        own = aliases.table.get(name) if aliases else None
        file = read_profile(folder, own) if isinstance(own, str) else None
    return file


def _node(name: str, num_nodes: int) -> Hardware | None:
    node = _read("nodes", name)
    if node is None:
        return None
    device = _read("devices", node.text("device"))
    if device is None:
        raise node.error(f"device {node.text('device')!r} is not in profiles/devices")
    try:
        return read_node(node, read_device(device), num_nodes)
    except ValueError as error:  # a name outside its enumeration
        raise node.error(str(error)) from error


def _detailed(name: str, num_nodes: int) -> Hardware | None:
    """Return ``NAME@detail`` where no profile has that name; None when NAME is no node."""
    own, mark, detail = name.partition(MARK)
    node = _node(own, 1) if mark and own != DeviceType.CPU else None
    if node is None:
        return None
    return replace(
        with_detail(node, detail), num_nodes=num_nodes, name=named(f"{node.name}{MARK}{detail}", num_nodes)
    )


def _generic(name: str, num_nodes: int) -> Hardware | None:
    """Return nodes of M devices for ``DEVICExM``; None when that is not what the name says."""
    match = _GENERIC.fullmatch(name)
    device = _read("devices", match["device"]) if match else None
    if match is None or device is None:
        return None
    per_node = int(match["per_node"])
    if per_node < 1:
        raise ProfileError(f"{name!r}: a node has at least one device", hint=f"write {match['device']}x8")
    if device.table.get("type") == DeviceType.CPU:
        raise ProfileError(
            f"{name!r}: on CPU hosts a device is a process",
            hint=f"use cpu with --ranks-per-node {per_node}",
        )
    return generic_node(device, per_node, num_nodes)


def _stored(name: str, num_nodes: int | None, ranks_per_node: int | None) -> Hardware:
    """Return a file's hardware, with another number of nodes or ranks where they are given."""
    hardware = read_hardware_file(Path(name))
    if num_nodes is not None:
        hardware = replace(hardware, num_nodes=num_nodes, name=named(name, num_nodes))
    if ranks_per_node in (None, hardware.devices_per_node):
        return hardware
    host, device = hardware.host, hardware.device
    if device.type is not DeviceType.CPU or host.cores is None or host.memory_bytes is None:
        return with_ranks(hardware, ranks_per_node)
    if any(entry.field == "matmul" and entry.kind is FigureKind.MEASURED for entry in device.provenance):
        raise ProfileError(
            f"{name} was measured with {hardware.devices_per_node} processes a host, not {ranks_per_node}",
            hint=f"parastrat calibrate --ranks-per-node {ranks_per_node} -o FILE",
        )
    return cpu_hardware(
        cores=host.cores,
        memory_bytes=host.memory_bytes,
        numa_nodes=host.numa_nodes or 1,
        ranks_per_node=ranks_per_node,
        num_nodes=hardware.num_nodes,
        network=hardware.network,
        name=name,
    )


def _unknown_hardware(name: str, num_nodes: int | None) -> ProfileError:
    if _read("devices", name):
        return ProfileError(f"{name!r} is a device, not a node", hint=f"say how many a node has: {name}x8")
    written = _as_written_here(name)
    near = _meant_hardware(name) if written is None else f"did you mean {named(written, num_nodes or 1)}?"
    return ProfileError(f"unknown hardware {name!r}", hint=near)


def _as_written_here(name: str) -> str | None:
    """Return what ``8xH100``, ``DGX-H100`` or ``rtx4090x2`` is called here; None where nothing is."""
    lower = name.lower()
    match = _TURNED.fullmatch(lower)
    turned = f"{match['device']}x{int(match['per_node'])}" if match else lower
    for other in (lower, turned, _hyphenated(turned)):
        if other != name and (_read("nodes", other) or _is_generic(other)):
            return other
    return None


def _meant_hardware(name: str) -> str:
    """Return what a name of no device or node may mean: so many of a device, or of a node, or a name."""
    if "," in name or "+" in name:
        return "name machines of one kind: plans are for nodes that are all alike"
    lower = name.lower()
    match = _TURNED.fullmatch(lower) or _COUNTED.fullmatch(lower)
    if match is not None:
        count, inner = match["per_node"], match["device"].strip(" -_")
        node = inner if _read("nodes", inner) else _as_written_here(inner)
        if node is not None:
            return f"{count} nodes are {node}:{count}"
    known = all_names((ProfileKind.NODES, ProfileKind.DEVICES))
    if match is None:
        return _did_you_mean(name, known)
    alike = [f"{device}x{count}" for device in nearest(inner, all_names((ProfileKind.DEVICES,)))]
    return f"did you mean {', '.join(alike)}?" if alike else _did_you_mean(name, known)


def _hyphenated(name: str) -> str:
    """Return a node, or devices of one, with the hyphens that its profile's name has."""
    match = _GENERIC.fullmatch(name)
    device, number = (match["device"], name[match.end("device") :]) if match else (name, "")
    known = {
        joined(each): each for each in all_names((ProfileKind.DEVICES if match else ProfileKind.NODES,))
    }
    return known.get(joined(device), device) + number


def _is_generic(name: str) -> bool:
    match = _GENERIC.fullmatch(name)
    return match is not None and _read("devices", match["device"]) is not None


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    close = nearest(name, names)
    if close:
        return f"did you mean {', '.join(close)}?"
    if len(names) > _MOST_NAMES:
        return "`parastrat profiles` lists all names"
    return f"known: {', '.join(names)}"
