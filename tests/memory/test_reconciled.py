"""Blocks told apart by their stacks; the peak replayed from a history."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from builders import case
from snapshots import (
    ACCUMULATED,
    BACKWARD,
    FORWARD,
    GATHERED,
    PARAMETERS,
    RECOMPUTED,
    STATES,
    STEPPING,
    Stack,
    block,
    event,
    segment,
    trained,
    write,
)
from torch.cuda._memory_viz import _profile_to_snapshot
from torch.profiler import ProfilerActivity, profile

from parastrat.memory.reconciled import _SIGNS, Held, Kind, held_by, kind_of, reconciled
from parastrat.snapshot import Frame
from parastrat.sources.memory_snapshot import read_snapshot
from parastrat.units import GIB, MIB


@pytest.mark.parametrize(
    ("stack", "kind"),
    [
        (PARAMETERS, Kind.PARAMETERS),
        (FORWARD, Kind.ACTIVATIONS),
        (STATES, Kind.OPTIMIZER),
        (STEPPING, Kind.TRANSIENT),
        (BACKWARD, Kind.BACKWARD),
        (ACCUMULATED, Kind.GRADIENTS),
        (GATHERED, Kind.TRANSIENT),
        (RECOMPUTED, Kind.BACKWARD),
        ([("train.py", "main")], Kind.UNKNOWN),
        ([], Kind.UNKNOWN),
    ],
)
def test_a_stack_tells_what_it_asks_for(stack: Stack, kind: Kind) -> None:
    assert kind_of(Frame(filename, name) for filename, name in stack) is kind
    windows = (Frame(filename.replace("/", "\\"), name) for filename, name in stack)
    assert kind_of(windows) is kind


def test_torch_has_the_functions_that_stacks_are_known_by() -> None:
    root = Path(torch.__file__).parent.parent
    files = [path.relative_to(root).as_posix() for path in (root / "torch").rglob("*.py")]
    missing = []
    for file, name, _ in _SIGNS:
        is_torchs = file and name and "modeling" not in file and "parastrat" not in file
        sources = (root / path for path in files if file in path)
        if is_torchs and not any(f"def {name}(" in path.read_text(encoding="utf-8") for path in sources):
            missing.append((file, name))
    assert missing == []


def read(tmp_path: Path, made: tuple[list[dict[str, object]], list[list[dict[str, object]]]]) -> Held:
    (found,) = read_snapshot(write(tmp_path / "s.pickle", *made))
    return held_by(found)


def test_the_peak_is_replayed_from_the_history(tmp_path: Path) -> None:
    held = read(tmp_path, trained())
    assert held.at_peak
    assert {kind: size // MIB for kind, size in held.kinds.items() if size} == {
        Kind.UNKNOWN: 2,
        Kind.PARAMETERS: 8,
        Kind.ACTIVATIONS: 4,
        Kind.BACKWARD: 2,
        Kind.GRADIENTS: 10,
    }
    assert (held.allocated, held.reserved) == (26 * MIB, 64 * MIB)
    assert held.events == 7


def test_without_history_the_moment_of_the_snapshot_counts(tmp_path: Path) -> None:
    segments, _ = trained()
    held = read(tmp_path, (segments, []))
    assert not held.at_peak
    assert held.allocated == 20 * MIB
    assert held.kinds[Kind.ACTIVATIONS] == 0


def test_a_peak_before_the_first_event_is_what_was_freed_since(tmp_path: Path) -> None:
    freed = [event("free_completed", 0, 512), event("segment_free", 0, 1024)]
    held = read(tmp_path, ([segment([block(2048, 64, FORWARD)])], [freed]))
    assert (held.allocated, held.reserved) == (512 + 64, 64 + 1024)
    assert held.kinds[Kind.UNKNOWN] == 512


def test_what_is_reserved_at_the_peak_is_what_was_then(tmp_path: Path) -> None:
    history = [
        event("segment_map", 0, 512),
        event("alloc", 0, 512, FORWARD),
        event("free_completed", 0, 512),
        event("segment_alloc", 4096, 8192),
        event("alloc", 4096, 100, FORWARD),
    ]
    end = [segment([block(4096, 512, FORWARD, requested_size=100)], spare=8192 - 512)]
    held = read(tmp_path, ([*end, segment([block(0, 512, state="inactive")])], [history]))
    assert (held.allocated, held.reserved) == (512, 512)


def test_every_byte_is_on_one_line() -> None:
    memory = case(num_nodes=1).estimate.memory
    kinds = {kind: (place + 1) * GIB for place, kind in enumerate(Kind)}
    held = Held(at_peak=True, kinds=kinds, reserved=40 * GIB, events=3)
    lines = {line.name: line for line in reconciled(memory, GIB, held)}
    assert lines["allocated"].measured == 28 * GIB
    assert lines["reserved, not allocated"].measured == 12 * GIB
    own = [*list(Kind)[:5], "in backward, gradients or transient", "unknown"]
    assert sum(lines[name].measured or 0 for name in own) == 28 * GIB
    assert sum(lines[name].estimated or 0 for name in list(Kind)[:5]) == lines["allocated"].estimated
    outside = lines["context and communicators"]
    assert (outside.estimated, outside.measured) == (GIB, None)
    assert (lines["reserved"].estimated or 0) + GIB == memory.total
    both = lines["gradients and transient together"]
    assert both.measured == (2 + 5 + 6) * GIB
    assert both.estimated == memory.gradients + memory.transient


def stepped(model: torch.nn.Module, given: torch.Tensor) -> None:
    """Take two steps of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        model(given).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_snapshot_that_torch_wrote_is_told_apart_as_torch_does(tmp_path: Path) -> None:
    """On CPU: torch's profiler writes the same format, with a category of its own for each allocation."""
    # a first step imports; the profiler keeps the address of the name of a file whose code ends so, and
    # reads there what others have written since
    stepped(torch.nn.Linear(1, 1), torch.ones(1, 1))
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    given = torch.randn(64, 256)
    with profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        acc_events=True,  # torch 2.11 warns without
    ) as profiled:
        stepped(model, given)
    made = _profile_to_snapshot(profiled)
    held = read(tmp_path, (made["segments"], made["device_traces"]))
    parameters = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert held.at_peak
    assert held.kinds[Kind.OPTIMIZER] == pytest.approx(2 * parameters, rel=0.01)
    # the peak is in the step: gradients, which are of backward, and a temporary of foreach
    assert held.kinds[Kind.BACKWARD] == pytest.approx(parameters, rel=0.01)
    assert held.kinds[Kind.TRANSIENT] == pytest.approx(parameters, rel=0.01)
    # made before the history began
    assert held.kinds[Kind.UNKNOWN] == pytest.approx(parameters + given.nbytes, rel=0.1)
    assert held.kinds[Kind.ACTIVATIONS] == 0
