"""How the processes of a plan are started and find each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: stands in commands and files for the training script, whose name nobody has told
YOUR_SCRIPT = "YOUR_SCRIPT.py"
#: jobs that may share a node meet at FIRST_PORT + number % PORTS: below the ports that Linux gives to
#: connections (net.ipv4.ip_local_port_range: from 32768), which may be taken before rank 0 listens
FIRST_PORT, PORTS = 20_000, 10_000
#: of processes that compute on processors: malloc asks for huge pages, of which 512 times fewer are given
#: anew as large tensors come and go; glibc from 2.35 reads it (its manual, "Memory Allocation Tunables")
ON_PROCESSORS = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


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
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        return self.nodes * self.ranks_per_node
