"""What a process may not exceed beside cores and memory, and whose machine it runs on."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from parastrat.probe.files import LIVE, exists, read_text, whole

if TYPE_CHECKING:
    from pathlib import Path

_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - its size is asked for, nothing is written
#: suffixes of tmpfs's option ``size`` (Documentation/filesystems/tmpfs.rst)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIGNS_OF_CONTAINER = (".dockerenv", "run/.containerenv")
_AWS_TYPE = re.compile(r"[a-z][a-z0-9-]*\.(?:metal|[a-z0-9]*large)(?:-[a-z0-9]+)?")


def read_shared_memory_bytes(root: Path, total_memory_bytes: int | None) -> int | None:
    """Return the size of ``/dev/shm``; None where it is not mounted or not stated.

    Args:
        root: of the host.
        total_memory_bytes: the machine's; tmpfs takes half of it where its mount states no size.
    """
    if root == LIVE:
        try:
            state = os.statvfs(_SHARED_MEMORY)
        except OSError:
            return None
        return state.f_blocks * state.f_frsize
    for line in reversed((read_text(root, "proc/mounts") or "").splitlines()):
        fields = line.split()
        if len(fields) > 3 and fields[1] == _SHARED_MEMORY:
            return _size_of_mount(fields[2], fields[3], total_memory_bytes)
    return None


def read_locked_memory(root: Path) -> tuple[int | None, bool | None]:
    """Return the bytes that a process may lock and whether there is no limit; None is unknown."""
    text = _soft_limit(root, "Max locked memory")
    if text is None:
        return None, None
    return (None, True) if text == "unlimited" else (whole(text), False)


def read_open_files(root: Path) -> int | None:
    """Return how many files a process may hold open; None where it is unknown or unlimited."""
    return whole(_soft_limit(root, "Max open files"))


def runs_in_container(root: Path) -> bool:
    """Return whether the host shows signs of a container, which hides parts of its machine."""
    return any(exists(root, sign) for sign in _SIGNS_OF_CONTAINER) or (
        root == LIVE and "KUBERNETES_SERVICE_HOST" in os.environ
    )


def read_cloud(root: Path) -> str | None:
    """Return the cloud and, on AWS, the instance type, such as ``aws:p5.48xlarge``; None elsewhere.

    Source: the firmware's tables (DMI), as aws-ofi-nccl src/platform-aws.c reads them.
    """
    folder = "sys/devices/virtual/dmi/id"
    vendor, product = (read_text(root, f"{folder}/{name}") or "" for name in ("sys_vendor", "product_name"))
    if vendor == "Amazon EC2" or (not vendor and _AWS_TYPE.fullmatch(product)):
        return f"aws:{product}" if _AWS_TYPE.fullmatch(product) else "aws"
    if vendor == "Google" or product == "Google Compute Engine":
        return "gcp"
    is_azure = vendor == "Microsoft Corporation" and product == "Virtual Machine"
    return "azure" if is_azure else None


def _size_of_mount(kind: str, options: str, total_memory_bytes: int | None) -> int | None:
    stated = re.search(r"(?:^|,)size=([0-9]{1,15})([kmgt%]?)(?:,|$)", options, re.IGNORECASE)
    if stated is None:
        is_default = kind == "tmpfs" and total_memory_bytes is not None
        return total_memory_bytes // 2 if is_default and total_memory_bytes else None
    number, suffix = int(stated[1]), stated[2].lower()
    if suffix == "%":
        return None if total_memory_bytes is None else total_memory_bytes * number // 100
    return number * _FACTORS[suffix]


def _soft_limit(root: Path, name: str) -> str | None:
    found = re.search(rf"^{name}\s+(\S+)", read_text(root, "proc/self/limits") or "", re.MULTILINE)
    return found[1] if found else None
