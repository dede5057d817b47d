"""Snapshots are read, and nothing in a pickle is ever run."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from snapshots import FORWARD, block, event, segment, trained, write

from parastrat.errors import SnapshotError
from parastrat.sources.memory_snapshot import read_snapshot


class _Harmful:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_a_snapshot_is_told_device_by_device(tmp_path: Path) -> None:
    first = segment([block(512, 1024, FORWARD, requested_size=1000)], device=1, spare=512)
    path = write(tmp_path / "s.pickle", [first, segment([], device=2)], [[], [event("alloc", 512, 1000)]])
    (found,) = read_snapshot(path)
    assert (found.device, found.reserved) == (1, 1536)
    used, spare = found.blocks
    assert (used.address, used.size, used.requested, used.active) == (512, 1024, 1000, True)
    assert [frame.name for frame in used.frames] == ["forward", "_call_impl", "<module>"]
    assert (spare.active, spare.frames) == (False, ())
    assert [each.action for each in found.events] == ["alloc"]


@pytest.mark.parametrize("state", ["active_awaiting_free", "active_pending_free"])
def test_what_a_stream_still_uses_is_not_free(tmp_path: Path, state: str) -> None:
    path = write(tmp_path / "s.pickle", [segment([block(0, 512, state=state)])], [])
    assert read_snapshot(path)[0].blocks[0].active


def test_older_blocks_have_no_address(tmp_path: Path) -> None:
    blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "inactive"}]
    old = {"device": 0, "address": 4096, "total_size": 1536, "blocks": blocks}
    (found,) = read_snapshot(write(tmp_path / "s.pickle", [old], []))
    assert [(each.address, each.requested) for each in found.blocks] == [(4096, 512), (4608, 1024)]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    made, path = tmp_path / "made", tmp_path / "s.pickle"
    segments, traces = trained()
    content = {"segments": segments, "device_traces": traces, "more": _Harmful(made)}
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    with pytest.raises(SnapshotError, match=r"it asks for \w+\.mkdir, which could run code"):
        read_snapshot(path)
    assert not made.exists()
    pickle.loads(path.read_bytes())  # noqa: S301 - what others would do
    assert made.exists()


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(OrderedDict(segments=[])),
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"Pfile\n.",
        pickle.dumps(Path("x")),
    ],
    ids=["a class", "a text opcode", "eval", "a persistent id", "a path"],
)
def test_no_name_of_code_is_looked_up(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match="it is no memory snapshot"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        pickle.dumps({"segments": []})[:-3],
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"(" * 100 + b".",
    ],
    ids=["empty", "text", "cut off", "huge text", "huge bytes", "marks"],
)
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=r"s\.pickle is no whole pickle"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"segments": 3},
        {"segments": [{"device": 0}]},
        {"segments": [{"total_size": -1, "address": 0, "blocks": []}]},
        {"segments": [{"total_size": "8", "address": 0, "blocks": []}]},
        {"segments": [segment([block(0, 512, state=7)])]},
        {"segments": [], "device_traces": [[{"addr": 1}]]},
        {"segments": [segment([block(0, 512, frames=[{"name": "f"}])])]},
    ],
)
def test_what_is_no_snapshot_is_told(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(SnapshotError, match=r"s\.pickle is no memory snapshot"):
        read_snapshot(path)


def test_a_snapshot_without_memory_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="holds no memory of any device"):
        read_snapshot(write(tmp_path / "s.pickle", [], [[]]))
    with pytest.raises(SnapshotError, match="cannot read"):
        read_snapshot(tmp_path / "none.pickle")
