"""What an allocator's snapshot holds, told apart by the stacks that asked for it, beside an estimate.

A stack names the function of torch that allocates: optimizers make their states in ``_init_group`` of
torch/optim, FSDP2 gathers in ``foreach_all_gather`` and reduces in ``foreach_reduce`` of
torch/distributed/fsdp/_fully_shard, modules are called by ``_call_impl`` of torch/nn/modules/module.py, and
backward runs in threads of ``torch::autograd::Engine``, mostly without frames of Python. What no stack
tells is unknown, never spread over the others. Tried on what torch's profiler writes of a CPU; a real GPU's
snapshot, whose stacks have frames of C++ as well, was not tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from parastrat.estimate import MemoryEstimate
    from parastrat.snapshot import DeviceSnapshot, Event, Frame

    #: bytes and stacks of what is allocated, by address
    _Live = dict[int, tuple[int, tuple[Frame, ...]]]


class Kind(StrEnum):
    """What a block of memory is; the first six are summands of an estimate."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    TRANSIENT = "transient"
    #: asked for while backward runs: gradients, and what exists while a block does
    BACKWARD = "backward"
    UNKNOWN = "unknown"


#: a part of a frame's file name and of its function's name, and what a stack with such a frame asks for;
#: the first that any frame meets counts
_SIGNS: tuple[tuple[str, str, Kind], ...] = (
    ("optim/", "_init_group", Kind.OPTIMIZER),
    ("optim/", "init_state", Kind.OPTIMIZER),
    ("torch/optim/", "", Kind.TRANSIENT),
    ("", "AccumulateGrad", Kind.GRADIENTS),
    ("nn/parallel/distributed.py", "__init__", Kind.GRADIENTS),
    ("nn/parallel/distributed.py", "_ddp_init_helper", Kind.GRADIENTS),
    ("_fsdp_collectives.py", "foreach_all_gather", Kind.TRANSIENT),
    ("_fsdp_param.py", "init_all_gather_outputs", Kind.TRANSIENT),
    ("_fsdp_param.py", "alloc_all_gather_outputs", Kind.TRANSIENT),
    ("_fsdp_collectives.py", "foreach_reduce", Kind.BACKWARD),
    ("torch/autograd/graph.py", "_engine_run_backward", Kind.BACKWARD),
    ("", "torch::autograd::Engine", Kind.BACKWARD),
    ("", "torch::autograd::python::PythonEngine", Kind.BACKWARD),
    ("_fsdp_param.py", "_init_sharded_param", Kind.PARAMETERS),
    ("nn/modules/module.py", "_apply", Kind.PARAMETERS),
    ("nn/modules/module.py", "to_empty", Kind.PARAMETERS),
    ("nn/modules/module.py", "load_state_dict", Kind.PARAMETERS),
    ("distributed/tensor/", "distribute_tensor", Kind.PARAMETERS),
    ("modeling_utils.py", "from_pretrained", Kind.PARAMETERS),
    ("parastrat/runtime/first_values/initialise.py", "", Kind.PARAMETERS),
    ("parastrat/runtime/first_values/weights.py", "", Kind.PARAMETERS),
    ("nn/modules/module.py", "_call_impl", Kind.ACTIVATIONS),
    ("torch/nn/modules/", "__init__", Kind.PARAMETERS),
    ("", "forward", Kind.ACTIVATIONS),
)
_PARTS = (Kind.PARAMETERS, Kind.GRADIENTS, Kind.OPTIMIZER, Kind.ACTIVATIONS, Kind.TRANSIENT)
_LIVE, _FREED = "alloc", "free_completed"
_GROWN, _SHRUNK = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")


def kind_of(frames: Iterable[Frame]) -> Kind:
    """Return what a stack asks memory for."""
    # torch's profiler names files and functions together
    stack = [
        (frame.filename.replace("\\", "/") if frame.filename != "none" else frame.name, frame.name)
        for frame in frames
    ]
    for file, name, kind in _SIGNS:
        if any(file in filename and name in function for filename, function in stack):
            return kind
    return Kind.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a device holds at one moment, bytes."""

    #: the history tells the peak; else it is the moment of the snapshot
    at_peak: bool
    #: as asked for, by kind
    kinds: Mapping[Kind, int]
    reserved: int
    #: events of the history
    events: int

    @property
    def allocated(self) -> int:
        return sum(self.kinds.values())


def held_by(snapshot: DeviceSnapshot) -> Held:
    """Return what a device holds at the peak of its history; without one, as the snapshot was taken."""
    live = {block.address: (block.requested, block.frames) for block in snapshot.blocks if block.active}
    moves = [event for event in snapshot.events if event.action in (_LIVE, _FREED, *_GROWN, *_SHRUNK)]
    reserved = snapshot.reserved
    for event in reversed(moves):
        reserved -= _growth(event)
        if event.action == _LIVE:
            live.pop(event.address, None)
        elif event.action == _FREED:
            live[event.address] = event.size, ()
    for event in moves[: _peak(live, moves)]:
        reserved += _growth(event)
        _redo(live, event)
    kinds = dict.fromkeys(Kind, 0)
    for size, frames in live.values():
        kinds[kind_of(frames)] += size
    return Held(at_peak=bool(moves), kinds=kinds, reserved=reserved, events=len(moves))


def _peak(before: _Live, moves: Sequence[Event]) -> int:
    """Return how many events lead to the most that was allocated at once."""
    live = dict(before)
    allocated = most = sum(size for size, _ in live.values())
    reached = 0
    for done, event in enumerate(moves, 1):
        allocated += _redo(live, event)
        if allocated > most:
            most, reached = allocated, done
    return reached


def _redo(live: _Live, event: Event) -> int:
    """Let one event happen, and return the bytes that were allocated by it."""
    if event.action == _LIVE:
        gone, _ = live.pop(event.address, (0, ()))
        live[event.address] = event.size, event.frames
        return event.size - gone
    if event.action == _FREED:
        gone, _ = live.pop(event.address, (0, ()))
        return -gone
    return 0


def _growth(event: Event) -> int:
    """Return the bytes that an event adds to what is reserved."""
    sign = (event.action in _GROWN) - (event.action in _SHRUNK)
    return sign * event.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a reconciliation, bytes; None where that side cannot tell."""

    name: str
    estimated: int | None
    measured: int | None


def reconciled(memory: MemoryEstimate, context: int, held: Held) -> tuple[Line, ...]:
    """Return an estimate beside what a snapshot shows, line by line.

    Args:
        memory: at the peak of the fullest rank.
        context: of its overhead, what lies outside of the allocator, bytes.
        held: by the device of the snapshot.
    """
    kinds, parts = held.kinds, memory.parts
    lines = [Line(name=kind.value, estimated=parts[kind.value], measured=kinds[kind]) for kind in _PARTS]
    rows: list[tuple[str, int | None, int | None]] = [
        ("in backward, gradients or transient", None, kinds[Kind.BACKWARD]),
        (
            "gradients and transient together",
            parts["gradients"] + parts["transient"],
            kinds[Kind.GRADIENTS] + kinds[Kind.TRANSIENT] + kinds[Kind.BACKWARD],
        ),
        ("unknown", None, kinds[Kind.UNKNOWN]),
        ("allocated", memory.total - parts["overhead"], held.allocated),
        ("reserved, not allocated", parts["overhead"] - context, held.reserved - held.allocated),
        ("reserved", memory.total - context, held.reserved),
        ("context and communicators", context, None),
    ]
    return (*lines, *(Line(name=name, estimated=known, measured=seen) for name, known, seen in rows))
