"""CUDA memory snapshots from pickles, of which nothing is run.

A pickle may name any function and have it called as it is read. A snapshot needs none: it is made of lists,
dicts, strings and numbers, and whatever else a file asks for ends the reading.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from parastrat.collection import without_collection
from parastrat.errors import SnapshotError
from parastrat.snapshot import Block, DeviceSnapshot, Event, Frame

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HOW = "write it with torch.cuda.memory._dump_snapshot(file)"
#: what a damaged or hostile pickle can make the reader raise
_BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class _Plain(pickle.Unpickler):
    """Reads builtin containers, strings and numbers alone, which need no names of code."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse any name of code.

        Raises:
            SnapshotError: always.
        """
        raise SnapshotError(
            f"it is no memory snapshot: it asks for {module}.{name}, which could run code",
            hint=_HOW,
        )

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse references to what lies elsewhere.

        Raises:
            SnapshotError: always.
        """
        raise SnapshotError(f"it is no memory snapshot: it refers to {pid!r} outside of it", hint=_HOW)


def read_snapshot(path: Path) -> tuple[DeviceSnapshot, ...]:
    """Return the devices of a snapshot that reserve memory or have a history.

    Raises:
        SnapshotError: it cannot be read, is no snapshot, or would run code.
    """
    with without_collection():
        return _read(path)


def _read(path: Path) -> tuple[DeviceSnapshot, ...]:
    try:
        with path.open("rb") as file:
            data = _Plain(file).load()
    except OSError as error:
        raise SnapshotError(f"cannot read {path}: {error.strerror}", hint="name a snapshot") from error
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error.message}", hint=error.hint) from None
    except _BROKEN as error:
        raise SnapshotError(f"{path} is no whole pickle: {error}", hint=_HOW) from error
    try:
        found = _devices(data)
    except _BROKEN as error:
        raise SnapshotError(
            f"{path} is no memory snapshot: {type(error).__name__} {error} among its parts",
            hint=_HOW,
        ) from error
    if not found:
        raise SnapshotError(f"{path} holds no memory of any device", hint="take it while a model is there")
    return found


def _devices(data: Any) -> tuple[DeviceSnapshot, ...]:
    segments, traces = data["segments"], data.get("device_traces", [])
    reserved: dict[int, int] = defaultdict(int)
    blocks: dict[int, list[Block]] = defaultdict(list)
    for segment in segments:
        device = _count(segment.get("device", 0))
        reserved[device] += _count(segment["total_size"])
        blocks[device] += _blocks(segment)
    events = {device: tuple(map(_event, trace)) for device, trace in enumerate(traces) if trace}
    return tuple(
        DeviceSnapshot(
            device=device,
            reserved=reserved[device],
            blocks=tuple(blocks[device]),
            events=events.get(device, ()),
        )
        for device in sorted({*reserved, *events})
        if reserved[device] or device in events
    )


def _blocks(segment: Mapping[str, Any]) -> list[Block]:
    found, address = [], _count(segment["address"])
    for block in segment["blocks"]:
        size = _count(block["size"])
        # before torch 2.1 a block told neither its address nor what was asked for
        place = _count(block.get("address", address))
        found.append(
            Block(
                address=place,
                size=size,
                requested=_count(block.get("requested_size", size)),
                active=_text(block["state"]).startswith("active"),
                frames=_frames(block.get("frames", ())),
            )
        )
        address = place + size
    return found


def _event(entry: Mapping[str, Any]) -> Event:
    return Event(
        action=_text(entry["action"]),
        # one of ``oom`` has none
        address=_count(entry.get("addr", 0)),
        size=_count(entry.get("size", 0)),
        frames=_frames(entry.get("frames", ())),
    )


def _frames(stack: Any) -> tuple[Frame, ...]:
    return tuple([_frame(frame["filename"], frame["name"]) for frame in stack])


@cache
def _frame(filename: object, name: object) -> Frame:
    # a history repeats few frames millions of times
    return Frame(_text(filename), _text(name))


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value
