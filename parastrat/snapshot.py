"""A snapshot of torch's CUDA allocator, as ``torch.cuda.memory._dump_snapshot`` writes it.

Sources: docs.pytorch.org/docs/stable/torch_cuda_memory.html; ``torch.cuda.memory._snapshot``'s docstring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """A line of a stack; the most recent one comes first in a stack."""

    filename: str
    name: str


@dataclass(frozen=True, slots=True)
class Block:
    """A piece of a segment."""

    address: int
    #: as the allocator rounded it, bytes
    size: int
    #: as it was asked for, bytes
    requested: int
    #: a tensor uses it, or a stream still may
    active: bool
    #: where it was asked for; empty where no history was recorded then
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """What the allocator did, in the order of time."""

    #: ``alloc``, ``free_completed``, ``segment_alloc``, ...
    action: str
    address: int
    size: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSnapshot:
    """The memory of one device."""

    device: int
    #: bytes of all segments
    reserved: int
    blocks: tuple[Block, ...]
    #: empty where no history was recorded
    events: tuple[Event, ...]
