"""How the processes of a plan are started and find each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that a launcher and ``init_process_group`` are told."""

    nodes: int
    ranks_per_node: int
    #: backend string of ``init_process_group``, such as ``cpu:gloo,cuda:nccl``; empty for one process
    backend: str
    #: torch device type
    device: str
    #: rendezvous store: ``tcp``, ``file`` or ``hash``
    store: str = "tcp"
    #: environment variables that every rank needs
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node
