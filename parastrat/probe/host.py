"""The processor side of a host: cores and memory that may be used, NUMA nodes, operating system."""

from __future__ import annotations

import os
import platform
import re
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError
from parastrat.hardware import HostSystem
from parastrat.machine import HostFacts
from parastrat.probe.files import LIVE, base, count_in_list, entries, read_int, read_text, whole
from parastrat.probe.limits import (
    read_cloud,
    read_locked_memory,
    read_open_files,
    read_shared_memory_bytes,
    runs_in_container,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["LIVE", "HostFacts", "read_cores", "read_host", "read_memory_bytes", "read_numa_nodes"]

#: groups that a process is in, and levels above them; deeper trees are nobody's
_MOST_GROUPS, _MOST_LEVELS = 64, 64
#: of hosts whose record has no list of groups: both versions, at the top of their mounts
_TOP_GROUPS = "0::/\n1:cpu:/\n2:cpuset:/\n3:memory:/"


def read_host(root: Path) -> HostFacts:
    """Read a host below its root.

    Raises:
        ProbeError: for a file that cannot be read.
    """
    total = _total_memory(root)
    locked, is_unlimited = read_locked_memory(root)
    return HostFacts(
        cores=read_cores(root),
        memory_bytes=read_memory_bytes(root),
        numa_nodes=read_numa_nodes(root),
        system=read_system(root),
        cores_online=_online(root),
        memory_total_bytes=total,
        shm_bytes=read_shared_memory_bytes(root, total),
        memlock_bytes=locked,
        memlock_unlimited=is_unlimited,
        open_files=read_open_files(root),
        container=runs_in_container(root),
        cloud=read_cloud(root),
    )


def read_cores(root: Path) -> int | None:
    """Return the cores that may be used: online, in the affinity, within the groups' quota.

    None where the kernel does not say how many are online.
    """
    online = _online(root)
    if online is None:
        return None
    limits = [online, *_affinity(root)]
    for group in _groups(root, "cpu"):
        quota, _, period = (read_text(root, f"{group}/cpu.max") or "").partition(" ")
        pair = (whole(quota), whole(period)) if quota != "max" else (None, None)
        allowed, each = pair if None not in pair else _quota_v1(root, group)
        if allowed and each and allowed > 0 and each > 0:
            limits.append(max(1, allowed // each))
    for group in _groups(root, "cpuset"):
        names = ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus")
        listed = next(filter(None, (read_text(root, f"{group}/{name}") for name in names)), None)
        if listed:
            limits.append(count_in_list(listed))
    return max(1, min(limits))


def read_memory_bytes(root: Path) -> int | None:
    """Return the memory that may be used: the machine's, or a smaller limit of the process's groups."""
    limits = [_total_memory(root)]
    for group in _groups(root, "memory"):
        limits += (read_int(root, f"{group}/{name}") for name in ("memory.max", "memory.limit_in_bytes"))
    known = [limit for limit in limits if limit is not None and limit > 0]
    # a limit alone may be "unlimited" in numbers: without the machine's size nothing is known
    return min(known) if limits[0] is not None and known else None


def read_numa_nodes(root: Path) -> int | None:
    """Return the NUMA nodes that have processors; None where the kernel does not say.

    A node without processors is memory alone: of a GPU on Grace, or of a CXL card.
    """
    folder = "sys/devices/system/node"
    for name in ("has_cpu", "online"):
        listed = read_text(root, f"{folder}/{name}")
        if listed:
            return count_in_list(listed) if name == "has_cpu" else _with_processors(root, listed)
    nodes = [entry for entry in entries(root, folder) if re.fullmatch(r"node\d+", base(entry))]
    return sum(bool(read_text(root, f"{node}/cpulist")) for node in nodes) or None


def read_system(root: Path) -> HostSystem:
    """Return the operating system; WSL 2 is told by Microsoft's name in the kernel's version."""
    version = read_text(root, "proc/version") or ""
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


def _with_processors(root: Path, listed: str) -> int:
    """Return how many of the nodes that are online have processors; all where nothing tells."""
    folder = "sys/devices/system/node"
    lists = [
        read_text(root, f"{entry}/cpulist")
        for entry in entries(root, folder)
        if re.fullmatch(r"node\d+", base(entry))
    ]
    # a file that is there and empty says: none
    return sum(bool(text) for text in lists if text is not None) or count_in_list(listed)


def _online(root: Path) -> int | None:
    listed = read_text(root, "sys/devices/system/cpu/online")
    if listed:
        return count_in_list(listed) or None
    names = (base(entry) for entry in entries(root, "sys/devices/system/cpu"))
    found = sum(re.fullmatch(r"cpu\d+", name) is not None for name in names)
    counted = found or len(
        re.findall(r"^processor\s*:", read_text(root, "proc/cpuinfo") or "", re.MULTILINE)
    )
    return counted or (os.cpu_count() if root == LIVE else None)


def _affinity(root: Path) -> Iterator[int]:
    """Yield how many cores the scheduler lets this process use."""
    if root == LIVE and hasattr(os, "sched_getaffinity"):
        yield len(os.sched_getaffinity(0))
        return
    allowed = re.search(
        r"^Cpus_allowed_list:\s*(\S+)", read_text(root, "proc/self/status") or "", re.MULTILINE
    )
    if allowed:
        yield count_in_list(allowed[1])


def _total_memory(root: Path) -> int | None:
    stated = re.search(
        r"^MemTotal:\s*([0-9]{1,15}) kB", read_text(root, "proc/meminfo") or "", re.MULTILINE
    )
    if stated:
        return int(stated[1]) * 1024
    if root == LIVE and hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _quota_v1(root: Path, group: str) -> tuple[int | None, int | None]:
    return read_int(root, f"{group}/cpu.cfs_quota_us"), read_int(root, f"{group}/cpu.cfs_period_us")


def _groups(root: Path, controller: str) -> Iterator[str]:
    """Yield the process's control group of a controller and all above it: each may limit.

    A container often sees the path of its host, which does not exist there; its own limits then stand at
    the top of its mount.
    """
    top = "sys/fs/cgroup"
    lines = (read_text(root, "proc/self/cgroup") or _TOP_GROUPS).splitlines()
    for line in lines[:_MOST_GROUPS]:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        mounts: Iterable[str]
        if not controllers:
            mounts = (top, f"{top}/unified")
        elif controller in controllers.split(","):
            mounts = (f"{top}/{controller}", f"{top}/{controllers}")
        else:
            continue
        parts = [part for part in path.split("/") if part not in {"", ".", ".."}][:_MOST_LEVELS]
        for mount in mounts:
            for depth in range(len(parts), -1, -1):
                yield "/".join((mount, *parts[:depth]))
