"""Where one plan that is shown takes memory, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.memory.host import HostMemory, host_memory
from parastrat.memory.phases import RankMemory, memory_by_phase

if TYPE_CHECKING:
    from parastrat.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """The memory of devices through a step, and that of hosts."""

    ranks: tuple[RankMemory, ...]
    #: None where the device's memory is the host's
    host: HostMemory | None


def rooms_of(case: Case) -> Rooms:
    """Return where a plan takes memory."""
    return Rooms(ranks=memory_by_phase(case.facts, case.plan), host=host_memory(case.facts, case.plan))
