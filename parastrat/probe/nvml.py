"""NVIDIA GPUs as their driver tells of them, without being blocked by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parastrat.errors import ProbeError
from parastrat.machine import Gpu
from parastrat.probe.files import LIVE, read_text
from parastrat.probe.pci import sysfs_address

__all__ = ["TIME_LIMIT_S", "Gpu", "GpuFacts", "ask", "facts_of", "read_gpus", "visible"]

#: a driver that answers at all does so within a second, many GPUs without persistence mode in three
TIME_LIMIT_S = 5.0
#: signs of a driver that cannot block: the kernel module's, and WSL's
_DRIVER = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")
_MOST_LINKS, _MOST_LANES = 64, 32
#: how a record may say so of one fact (NVMLError_NotSupported)
_NOT_SUPPORTED = "NotSupported"
#: NVML_GPU_FABRIC_STATE_COMPLETED
_FABRIC_COMPLETED = 3
#: of CUDA_DEVICE_ORDER, which is NVML's order
_BY_ADDRESS = "PCI_BUS_ID"
#: no host has GPUs by numbers of as many digits
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """The GPUs of a host, or why they cannot be told."""

    gpus: tuple[Gpu, ...] = ()
    #: None: the driver answered, or there is none
    trouble: str | None = None


def read_gpus(root: Path) -> GpuFacts:
    """Ask the driver of this machine, or read the record of another (``nvml.json``).

    Raises:
        ProbeError: for a record that is malformed.
    """
    if root != LIVE:
        record = read_text(root, "nvml.json")
        return facts_of(record) if record is not None else GpuFacts()
    if not any((root / sign).exists() for sign in _DRIVER):
        return GpuFacts()
    child = (sys.executable, "-m", "parastrat.probe.nvml_child")
    setting, order = (os.environ.get(f"CUDA_{name}") for name in ("VISIBLE_DEVICES", "DEVICE_ORDER"))
    return visible(ask(child, TIME_LIMIT_S), setting, order)


def ask(command: Sequence[str], time_limit_s: float) -> GpuFacts:
    """Run the command that prints the facts; one that hangs or fails is a fact too."""
    child = subprocess.Popen(  # noqa: S603 - our own module
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, error = child.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired:
        _abandon(child)
        return GpuFacts(trouble=f"the NVIDIA driver did not answer within {time_limit_s:g} s")
    if child.returncode:
        last = error.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
        return GpuFacts(trouble=f"asking the NVIDIA driver failed: {last[0]}")
    return facts_of(out)


def _abandon(child: subprocess.Popen[str]) -> None:
    """Kill a child, but do not wait for it: one that hangs inside the driver does not die."""
    child.kill()
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()
    try:
        child.wait(timeout=0.5)
    except subprocess.TimeoutExpired:
        child.returncode = -9  # else the interpreter would warn of a child that it cannot end either


def facts_of(record: str) -> GpuFacts:
    """Read the JSON that the child prints and that recorded hosts carry.

    Raises:
        ProbeError: for anything else.
    """
    try:
        table = json.loads(record)
        gpus = tuple(_gpu(entry) for entry in table["gpus"])
        gpus = _with_peer_access(gpus, table.get("p2p"))
    # deep nesting ends in RecursionError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProbeError(
            f"the record of the GPUs is malformed: {str(error)[:200]!r}",
            hint="record the host again, or use --on NAME",
        ) from error
    trouble = table.get("trouble")
    if trouble in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return GpuFacts()  # a machine without a driver has no GPU that torch could use
    return GpuFacts(gpus=gpus, trouble=f"NVML: {table.get('message', trouble)}" if trouble else None)


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    """Return one GPU; what its driver refused to tell, in whatever words, is None.

    A link's state that is not supported is no link; the far ends of links may be hidden, as in VMs.
    """
    mig, name = entry.get("mig"), entry.get("name") if "error" in entry else entry["name"]
    remote = entry.get("nvlink_remote_type")
    return Gpu(
        name=name if isinstance(name, str) else None,
        uuid=entry["uuid"] if isinstance(entry.get("uuid"), str) else None,
        memory_bytes=_number(entry, "memory_total_bytes", 2**60) or None,
        compute_capability=_capability(entry.get("cuda_cc")),
        mig=isinstance(mig, list) and bool(mig) and mig[0] == 1,
        nvlinks=_number(entry, "nvlink_active", _MOST_LINKS),
        nvlink_remote=remote if isinstance(remote, str) else None,
        nvlink_domain=_in_domain(entry.get("fabric")),
        peers=_peers(entry.get("nvlink_peers")),
        bus_id=sysfs_address(entry.get("bus_id")),
        numa_node=_number(entry, "numa", 2**16),
        pcie_width=_number(entry, "pcie_width_cur", _MOST_LANES) or None,
        pcie_width_max=_number(entry, "pcie_width_max", _MOST_LANES) or None,
    )


def _with_peer_access(gpus: tuple[Gpu, ...], states: object) -> tuple[Gpu, ...]:
    """Complete GPUs with whether each may read all others; None where one of the answers is missing."""
    if not isinstance(states, list) or len(states) != len(gpus):
        return gpus
    return tuple(
        replace(gpu, peer_access=_reads_all(row, at))
        for at, (gpu, row) in enumerate(zip(gpus, states, strict=True))
    )


def _reads_all(row: object, own: int) -> bool | None:
    others = row[:own] + row[own + 1 :] if isinstance(row, list) else []
    if any(type(state) is int and state != 0 for state in others):
        return False
    return True if others and all(type(state) is int for state in others) else None


def _number(entry: Mapping[str, Any], key: str, most: int) -> int | None:
    value = entry.get(key)
    if isinstance(value, dict):
        value = value.get("error")
    if isinstance(value, str) and _NOT_SUPPORTED in value:
        return 0
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= most else None


def _capability(value: object) -> str | None:
    if not (isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value)):
        return None
    return ".".join(map(str, value)) if all(0 <= part < 1000 for part in value) else None


def _in_domain(fabric: object) -> bool:
    """Return whether a GPU is in a domain of NVLink that spans nodes.

    H100 boxes report a completed fabric with a zero cluster (meta-pytorch/torchcomms#936).
    """
    if not isinstance(fabric, dict):
        return False
    is_ready = fabric.get("state") == _FABRIC_COMPLETED and fabric.get("status") == 0
    return is_ready and bool(str(fabric.get("clusterUuid") or "").strip("0-"))


def _peers(table: object) -> tuple[tuple[str, int], ...]:
    if not isinstance(table, dict):
        return ()
    known = ((sysfs_address(address), _number(table, address, _MOST_LINKS)) for address in table)
    return tuple((address, links) for address, links in known if address and links)


def visible(facts: GpuFacts, setting: str | None, order: str | None = None) -> GpuFacts:
    """Keep what CUDA_VISIBLE_DEVICES leaves: NVML does not heed it, torch does.

    As CUDA reads it, an entry that names no device ends the list.

    Args:
        facts: in the order of NVML, which is that of PCI addresses.
        setting: the variable; None: unset.
        order: CUDA_DEVICE_ORDER, by default the fastest device first.

    Raises:
        ProbeError: a number may mean another device to CUDA, or an entry is part of one, or twice there.
    """
    if setting is None:
        return facts
    kept: list[Gpu] = []
    alike = len({gpu.name for gpu in facts.gpus}) <= 1 or order == _BY_ADDRESS
    for entry in filter(None, (part.strip() for part in setting.split(","))):
        if entry.startswith("MIG-"):
            raise ProbeError(
                f"CUDA_VISIBLE_DEVICES={setting} names a part of a GPU (MIG), whose rates are unknown",
                hint="plan for whole devices with --on, such as --on a100-sxm4-80x1",
            )
        if entry.isascii() and entry.isdigit() and len(entry) < _DIGITS:
            if not alike:
                raise ProbeError(
                    f"CUDA_VISIBLE_DEVICES={setting} on GPUs of several kinds: the fastest is 0",
                    hint=f"set CUDA_DEVICE_ORDER={_BY_ADDRESS} as well, or name GPUs by their UUIDs",
                )
            chosen = facts.gpus[int(entry) : int(entry) + 1]
        else:
            chosen = tuple(gpu for gpu in facts.gpus if gpu.uuid and gpu.uuid.startswith(entry))
        if len(chosen) != 1:
            break
        if any(chosen[0] is gpu for gpu in kept):
            raise ProbeError(f"CUDA_VISIBLE_DEVICES={setting} names a GPU twice", hint="name each GPU once")
        kept += chosen
    return GpuFacts(gpus=tuple(kept), trouble=facts.trouble)
