"""Kernel files below a root: ``/`` for this machine, a recorded tree for another.

A recorded tree is somebody's: links are followed inside it only (an absolute one starts at the tree's own
root, as in a chroot), devices and pipes are not opened, and numbers and lengths are bounded. In trees that
are checked out where links cannot be made, a link is a file with its target, such as ``../../devices/x``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from parastrat.errors import ProbeError

#: this machine, as opposed to a recorded one
LIVE = Path("/")
#: what the kernel answers for an attribute that has no value now, such as the speed of a link that is down
_NO_VALUE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENODEV, errno.ENODATA, errno.EIO})
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
#: links on the way to one file; the kernel's own limit (path_resolution(7))
_MOST_LINKS = 40
_LONGEST_TARGET = 4096
#: no kernel file that is read here is as long
_LONGEST_FILE = 4 * 2**20
#: what fits the kernel's own signed counters
_LONGEST_NUMBER = 19
#: more processors or nodes than any kernel has
_MOST_IN_LIST = 2**16


def read_text(root: Path, name: str) -> str | None:
    """Return a file's text without surrounding space; None where it is absent or has no value.

    Raises:
        ProbeError: if the file is there and cannot be read, or is absurdly long.
    """
    place = _resolved(root, name, to_text=True)
    if place is None:
        return None
    path = root / place
    try:
        # a pipe or a device must not block or act: neither is opened for good
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:  # noqa: PTH123 - a descriptor
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return None
            content = stream.read(_LONGEST_FILE + 1)
    except IsADirectoryError:
        return None
    except OSError as error:
        if error.errno in _NO_VALUE | _ABSENT:
            return None
        raise _unreadable(path, error.strerror) from error
    if len(content) > _LONGEST_FILE:
        raise _unreadable(path, f"longer than {_LONGEST_FILE:,} bytes")
    return content.decode(errors="replace").strip()


def read_int(root: Path, name: str) -> int | None:
    """Return a file's whole number; None where it is absent or holds something else (``max``)."""
    return whole(read_text(root, name))


def whole(text: str | None) -> int | None:
    """Return the number that a text is, of at most 64 bits; None for anything else."""
    found = re.fullmatch(rf"-?[0-9]{{1,{_LONGEST_NUMBER}}}", text or "")
    return int(found[0]) if found and abs(int(found[0])) < 2**63 else None


def entries(root: Path, name: str) -> tuple[str, ...]:
    """Return the paths of what a folder holds, sorted; empty where it is absent.

    Names that no kernel gives (hidden, not ASCII) are left out.

    Raises:
        ProbeError: if the folder is there and cannot be listed.
    """
    place = _resolved(root, name, to_text=False)
    if place is None:
        return ()
    try:
        found = sorted(os.listdir(root / place))  # noqa: PTH208 - names alone; their paths stay inside
    except OSError as error:
        if error.errno in _ABSENT:
            return ()
        raise _unreadable(root / place, error.strerror) from error
    return tuple(f"{name}/{entry}" for entry in found if entry[0] != "." and _is_plain(entry))


def is_folder(root: Path, name: str) -> bool:
    """Return whether a folder is there, also behind a link."""
    place = _resolved(root, name, to_text=False)
    return place is not None and (root / place).is_dir()


def exists(root: Path, name: str) -> bool:
    """Return whether anything is there."""
    return _resolved(root, name, to_text=True) is not None


def followed(root: Path, name: str) -> str | None:
    """Return the path below the root that a link leads to; None where it leads nowhere."""
    return _resolved(root, name, to_text=False)


def base(name: str) -> str:
    """Return the last part of a path."""
    return name.rpartition("/")[2]


def count_in_list(text: str) -> int:
    """Return how many numbers a kernel list such as ``0-3,8`` names.

    Raises:
        ProbeError: for a malformed list.
    """
    total = 0
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        low, high = whole(first), whole(last or first)
        if low is None or high is None or not 0 <= low <= high < _MOST_IN_LIST:
            hint = "report this host with its sysfs file"
            raise ProbeError(f"{text[:60]!r} is not a kernel list", hint=hint)
        total += high - low + 1
    return total


def _resolved(root: Path, name: str, *, to_text: bool) -> str | None:
    """Return where a path leads below the root; None where nothing is.

    Args:
        root: which nothing leaves.
        name: below it.
        to_text: the last part is to be read: its text is no link.

    Raises:
        ProbeError: for links in a circle, or a folder that may not be searched.
    """
    # each folder on the way, whole: there are thousands of paths, and joining them anew is slow
    top = str(root).rstrip("/")
    done = [top]
    waiting = name.split("/")[::-1]
    links = 0
    while waiting:
        part = waiting.pop()
        if part == ".." and len(done) > 1:
            done.pop()
        if part in {"", ".", ".."}:
            continue
        path = f"{done[-1]}/{part}"
        try:
            target = _target(path, is_text=to_text and not waiting)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise _unreadable(Path(path), error.strerror) from error
        except ValueError:  # a zero byte in a name
            return None
        if target is None:
            done.append(path)
            continue
        links += 1
        if links > _MOST_LINKS:
            raise _unreadable(Path(path), "links in a circle")
        if target.startswith("/"):
            del done[1:]
        waiting += target.split("/")[::-1]
    return done[-1][len(top) + 1 :]


def _target(path: str, *, is_text: bool) -> str | None:
    """Return where a link leads; None for anything else."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return os.readlink(path)  # noqa: PTH115
    if is_text or not stat.S_ISREG(mode):
        return None
    with open(path, "rb") as stream:  # noqa: PTH123
        text = stream.read(_LONGEST_TARGET).decode(errors="replace").strip()
    return text if text == ".." or text.startswith("../") else None


def _is_plain(name: str) -> bool:
    return name.isascii() and name.isprintable()


def _unreadable(path: Path, reason: str | None) -> ProbeError:
    return ProbeError(
        f"{path} cannot be read: {reason}",
        hint="run as a user who may read it, or name the hardware with --on",
    )
