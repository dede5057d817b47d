"""The processor side of a host: cores and memory that may be used, NUMA nodes, operating system."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import HostSystem
from parastrat.probe.files import count_in_list, read_int, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: this machine, as opposed to a recorded one
LIVE = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """What a process may use of its host. None is unknown."""

    #: at least 1; a quota of 1.5 cores counts as one, because a process cannot have half a thread
    cores: int
    memory_bytes: int
    numa_nodes: int | None
    system: HostSystem


def read_host(root: Path) -> HostFacts:
    """Read a host below its root.

    Raises:
        ProbeError: where cores or memory are not stated, or a file cannot be read.
    """
    return HostFacts(
        cores=read_cores(root),
        memory_bytes=read_memory_bytes(root),
        numa_nodes=read_numa_nodes(root),
        system=read_system(root),
    )


def read_cores(root: Path) -> int:
    """Return the cores that may be used: online, in the affinity, within the groups' quota."""
    limits = [_online(root)]
    if root == LIVE and hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    for group in _groups(root, "cpu"):
        quota, _, period = (read_text(group / "cpu.max") or "").partition(" ")
        pair = (int(quota), int(period)) if quota.isdigit() and period.isdigit() else _quota_v1(group)
        if pair and pair[0] > 0 and pair[1] > 0:
            limits.append(max(1, pair[0] // pair[1]))
    for group in _groups(root, "cpuset"):
        allowed = read_text(group / "cpuset.cpus.effective") or read_text(group / "cpuset.effective_cpus")
        if allowed:
            limits.append(count_in_list(allowed))
    return min(limits)


def read_memory_bytes(root: Path) -> int:
    """Return the memory that may be used: the machine's, or a smaller limit of the process's groups."""
    limits = [_total_memory(root)]
    for group in _groups(root, "memory"):
        limits += filter(None, (read_int(group / name) for name in ("memory.max", "memory.limit_in_bytes")))
    return min(limits)


def read_numa_nodes(root: Path) -> int | None:
    """Return the number of NUMA nodes; None where the kernel does not say, as in some containers."""
    online = read_text(root / "sys/devices/system/node/online")
    return count_in_list(online) if online else None


def read_system(root: Path) -> HostSystem:
    """Return the operating system; WSL 2 is told by Microsoft's name in the kernel's version."""
    version = read_text(root / "proc/version") or ""
    if "microsoft" in version.lower():
        return HostSystem.WSL2
    if root != LIVE:
        return HostSystem.LINUX
    named = platform.system().lower()
    try:
        return HostSystem(named)
    except ValueError as error:
        hint = "name the hardware with --on"
        raise ProbeError(f"unknown operating system {named!r}", hint=hint) from error


def _online(root: Path) -> int:
    listed = read_text(root / "sys/devices/system/cpu/online")
    cores = count_in_list(listed) if listed else (os.cpu_count() if root == LIVE else None)
    if not cores:
        raise ProbeError("the number of cores is not stated", hint="name the hardware with --on")
    return cores


def _total_memory(root: Path) -> int:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "MemTotal":
            return int(value.split()[0]) * 1024
    if root == LIVE and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    raise ProbeError("the size of the memory is not stated", hint="name the hardware with --on")


def _quota_v1(group: Path) -> tuple[int, int] | None:
    quota, period = read_int(group / "cpu.cfs_quota_us"), read_int(group / "cpu.cfs_period_us")
    return None if quota is None or period is None else (quota, period)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the process's control group of a controller and all above it: each may limit.

    A container often sees the path of its host, which does not exist there; its own limits then stand at
    the top of its mount.
    """
    base = root / "sys/fs/cgroup"
    lines = (read_text(root / "proc/self/cgroup") or "0::/").splitlines()
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        tops: Iterable[Path]
        if not controllers:
            tops = (base, base / "unified")
        elif controller in controllers.split(","):
            tops = (base / controller, base / controllers)
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for top in tops:
            for part in (inner, *inner.parents):
                yield top / part
