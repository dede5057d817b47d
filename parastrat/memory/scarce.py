"""How far a plan is from fitting, and of which memory it lacks most: its devices' or its hosts'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.memory.host import host_of

if TYPE_CHECKING:
    from parastrat.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Scarce:
    """What a plan needs of one memory, bytes, without the margin of error."""

    needed: int
    capacity: int
    #: of a host, for all its processes; otherwise of the fullest device
    of_host: bool

    @property
    def share(self) -> float:
        """What is needed of what there is; more than one where it does not fit."""
        return self.needed / self.capacity


def scarcest(case: Case) -> Scarce:
    """Return the memory of which a plan needs the greatest share."""
    return max(_memories(case), key=lambda each: each.share)


def excess(case: Case) -> float:
    """Return the factor by which memory would have to grow, of devices times of hosts; 1 where it fits."""
    factor = 1.0
    for each in _memories(case):
        factor *= max(1.0, each.share)
    return factor


def _memories(case: Case) -> list[Scarce]:
    """Return the devices' memory, and the hosts' where it is known and another."""
    memory, host = case.estimate.memory, host_of(case.facts, case.plan)
    found = [Scarce(needed=memory.total, capacity=memory.capacity, of_host=False)]
    if host:
        found.append(Scarce(needed=host["host_needed"], capacity=host["host_capacity"], of_host=True))
    return found
