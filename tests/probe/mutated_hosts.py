"""Recorded hosts, damaged in every way that a folder from somewhere else may be."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from parastrat.errors import ParastratError, ProbeError
from parastrat.probe import files, hardware_of, read_machine
from parastrat.probe.summary import between_nodes, plugin_of, summary
from parastrat.profiles import hardware_toml
from parastrat.records import plain
from parastrat.report.host import HostReport, host_text
from parastrat.report.text import Paper

HOSTS = Path(__file__).parent / "hosts"
_MOST_DAMAGES = 8

_WORDS: tuple[bytes, ...] = (
    b"",
    b"max",
    b"-1",
    b"0",
    b"nan",
    b"1e999",
    b"0x15b3",
    b"4: ACTIVE",
    b"\xc2\xb2",
    b"9" * 25,
    b"9" * 5000,
    b"-" + b"9" * 18,
    b"0-99999999999",
    b"5-1,,-,0-",
    b"1 " * 40,
    b"../" * 2000,
    b"../../..",
    b"/" * 9000,
    b"0::/" + b"a/" * 5000,
    b"\x00\x00\x00",
    b"[" * 50000,
    b"InfiniBand",
    b"up",
    b"x" * 2_000_000,
    b"999999999 Gb/sec",
    b"MemTotal: kB",
    b"MemTotal: 999999999999999 kB",
    b"tmpfs /dev/shm tmpfs size=999999999999999g 0 0",
    b"Max locked memory\nMax locked memory -1",
    b"Iface\neth0 00000000 0 0 0 0 x 00000000 0",
)
_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    3,
    10**30,
    1.5,
    float("nan"),
    "",
    "NVMLError_NotSupported",
    "\ud800",
    "x" * 10000,
    [],
    [1],
    [[9, 0]],
    {},
    {"state": 3, "status": 0, "clusterUuid": 7},
    {"00000000:1B:00.0": 10**30},
    "zzzz:1b:00.0",
)


@dataclass(slots=True)
class Working:
    """A copy of one host that is damaged and mended."""

    root: Path
    pristine: Path
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copytree(self.pristine, self.root)
        found = (path.relative_to(self.pristine) for path in sorted(self.pristine.rglob("*")))
        self.names = [str(path) for path in found if path.name not in {"expected.json", "meta.json"}]

    def mend(self, name: str) -> None:
        """Restore the part of the tree in which something was damaged."""
        place, whole = self.root / name, self.pristine / name
        _remove(place)
        place.parent.mkdir(parents=True, exist_ok=True)
        if whole.is_dir():
            shutil.copytree(whole, place)
        else:
            shutil.copyfile(whole, place)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _overwrite(path: Path, content: bytes) -> None:
    _remove(path)
    path.write_bytes(content)


def _cut(path: Path, draw: random.Random) -> None:
    if path.is_file():
        content = path.read_bytes()
        _overwrite(path, content[: draw.randrange(len(content) + 1)])


def _flip(path: Path, draw: random.Random) -> None:
    if path.is_file() and path.stat().st_size:
        content = bytearray(path.read_bytes())
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.randrange(256)
        _overwrite(path, bytes(content))


def _garbage(path: Path, draw: random.Random) -> None:
    _overwrite(path, draw.randbytes(draw.choice((1, 40, 4000))))


def _word(path: Path, draw: random.Random) -> None:
    _overwrite(path, draw.choice(_WORDS))


def _folder(path: Path, draw: random.Random) -> None:
    _remove(path)
    path.mkdir()
    if draw.random() < 0.5:
        (path / draw.choice(("0", "x", "\udcff", "ports"))).write_bytes(draw.choice(_WORDS[:8]))


def _link(path: Path, draw: random.Random) -> None:
    _remove(path)
    away = (
        "/etc/passwd",
        "/dev/zero",
        "/proc/self/mem",
        "/",
        "..",
        ".",
        path.name,
        "../../../../../../../..",
    )
    path.symlink_to(draw.choice(away))


def _circle(path: Path, _: random.Random) -> None:
    _remove(path)
    path.symlink_to(f"../{path.parent.name}/{path.name}")


def _pipe(path: Path, _: random.Random) -> None:
    _remove(path)
    os.mkfifo(path)


def _delete(path: Path, _: random.Random) -> None:
    _remove(path)


def _record(path: Path, draw: random.Random) -> None:
    """Change one value in the record of the GPUs; elsewhere, a word."""
    if path.name != "nvml.json" or not path.is_file():
        _word(path, draw)
        return
    try:
        table = json.loads(path.read_bytes())
        entry = draw.choice(table["gpus"]) if draw.random() < 0.8 else table
        key = draw.choice([*entry, "error", "trouble", "nvlink_peers", "fabric", "p2p"])
        entry[key] = draw.choice(_VALUES)
        _overwrite(path, json.dumps(table).encode())
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        _word(path, draw)


_DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    *(_delete, _cut, _flip, _garbage, _word, _word, _folder, _link, _circle, _pipe, _record, _record),
)


@contextmanager
def damaged(host: Working, draw: random.Random) -> Iterator[str]:
    """Damage a host in one to eight places, tell where, and mend it afterwards."""
    touched: list[str] = []
    told: list[str] = []
    unreadable: set[str] = set()
    try:
        for _ in range(draw.randint(1, _MOST_DAMAGES)):
            name = (
                "nvml.json"
                if draw.random() < 0.15 and "nvml.json" in host.names
                else draw.choice(host.names)
            )
            path = host.root / name
            # what lies inside of something that was damaged already is left
            if any(Path(name).is_relative_to(other) for other in touched) or not os.path.lexists(path):
                continue
            damage = draw.choice(_DAMAGES)
            if draw.random() < 0.05:
                unreadable.add(str(path))
                told.append(f"unreadable {name}")
                continue
            touched.append(name)
            told.append(f"{damage.__name__} {name}")
            damage(path, draw)
        with _refusing(unreadable):
            yield "; ".join(told)
    finally:
        for name in sorted(touched, key=len):
            host.mend(name)


@contextmanager
def _refusing(unreadable: set[str]) -> Iterator[None]:
    """Refuse to open or list some paths: the one who tests may be root, whom no mode stops."""

    def guarded(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any) -> Any:
            if str(path) in unreadable:
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *arguments)

        return call

    with (
        mock.patch.object(files.os, "open", guarded(os.open)),
        mock.patch.object(files.os, "listdir", guarded(os.listdir)),
    ):
        yield


def timed(root: Path, limit_s: float) -> tuple[bool, float]:
    """Tell everything of a host; return whether it could be read, and the seconds that it took.

    What took too long is told once more, because another process may have had the processor.
    """
    took = float("inf")
    for _ in range(2):
        start = time.perf_counter()
        was_read = tell_everything(root)
        took = min(took, time.perf_counter() - start)
        if took <= limit_s:
            break
    return was_read, took


def tell_everything(root: Path) -> bool:
    """Read a host and tell it in every form; return whether it could be read.

    Raises:
        Exception: anything that is no ``ParastratError`` is a fault of ours.
    """
    try:
        machine = read_machine(root)
    except ProbeError:
        return False
    refusal = None
    try:
        hardware = hardware_of(machine)
        hardware_toml(hardware).encode()
    except ParastratError as error:
        hardware, refusal = None, error.message
    json.dumps(summary(machine, hardware), allow_nan=False)
    json.dumps(plain(machine), allow_nan=False)
    report = HostReport(
        machine=machine,
        decision=between_nodes(machine, hardware),
        plugin=plugin_of(machine),
        fabric=machine.fabric,
        no_hardware=refusal,
        next_commands=("parastrat recommend MODEL",),
    )
    host_text(report, Paper())
    return True
