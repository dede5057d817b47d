"""Kernel files below a root: ``/`` for this machine, a recorded tree for another."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from parastrat.errors import ProbeError

if TYPE_CHECKING:
    from pathlib import Path

#: what the kernel answers for an attribute that has no value now, such as the speed of a link that is down
_NO_VALUE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA, errno.EIO})


def read_text(path: Path) -> str | None:
    """Return a file's text without surrounding space; None where it is absent or has no value.

    Raises:
        ProbeError: if the file is there and cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        if error.errno in _NO_VALUE:
            return None
        raise _unreadable(path, error) from error


def read_int(path: Path) -> int | None:
    """Return a file's whole number; None where it is absent or holds something else (``max``)."""
    text = read_text(path)
    try:
        return int(text) if text is not None else None
    except ValueError:
        return None


def entries(path: Path) -> tuple[Path, ...]:
    """Return what a folder holds, sorted; empty where it is absent.

    Raises:
        ProbeError: if the folder is there and cannot be listed.
    """
    try:
        return tuple(sorted(entry for entry in path.iterdir() if not entry.name.startswith(".")))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise _unreadable(path, error) from error


def followed(path: Path) -> Path:
    """Return what a link leads to.

    In trees recorded or checked out where links cannot be made, a link is a file with its target in it.
    """
    if path.is_file():
        target = read_text(path) or ""
        if target.startswith("../"):
            return (path.parent / target).resolve()
    return path.resolve()


def count_in_list(text: str) -> int:
    """Return how many numbers a kernel list such as ``0-3,8`` names.

    Raises:
        ProbeError: for a malformed list.
    """
    total = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or not (last or first).isdigit():
            raise ProbeError(f"{text!r} is not a kernel list", hint="report this host with its sysfs file")
        total += int(last or first) - int(first) + 1
    return total


def _unreadable(path: Path, error: OSError) -> ProbeError:
    return ProbeError(
        f"{path} cannot be read: {error.strerror}",
        hint="run as a user who may read it, or name the hardware with --on",
    )
