"""What a search answers: the chosen plan, the ladder it was chosen on, and what was left."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.finding import Finding
    from parastrat.hardware import FigureKind


class RungStatus(StrEnum):
    TAKEN = "taken"
    SLOWER = "slower"
    DOES_NOT_FIT = "does_not_fit"
    NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One rung of the ladder with its best plan, or why it has none."""

    #: strategy of the best plan; the rung's own strategies where it has none
    strategy: str
    rung: int
    status: RungStatus
    #: the finding or number that took or left it
    reason: str
    case: Case | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Plans that one rule removed from the search."""

    code: str
    title: str
    count: int
    #: the message for one of them, and what to do about it
    example: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestFit:
    """A plan that would fit if the user made these changes."""

    changes: tuple[str, ...]
    case: Case
    #: tokens (samples without tokens) per second, of all devices, as a share of those of the fastest plan
    #: if memory were no limit; None where no such plan obeys the other rules
    speed: float | None = None
    #: the same of each device, which tells what more devices pay back
    speed_each: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """The recommendation with one figure of the hardware moved."""

    factor: float
    #: the plan that is recommended, as it would do there
    chosen: Case
    #: what would be recommended there
    other: Case
    #: share by which a plan may be slower and still be as good
    tolerance: float

    @property
    def simpler(self) -> bool:
        """Whether what would be recommended stands on a lower rung."""
        return self.other.plan.rung < self.chosen.plan.rung

    @property
    def flips(self) -> bool:
        """Whether the recommendation no longer does: something simpler does as well, or it is slower."""
        here, there = (case.estimate.time.step for case in (self.chosen, self.other))
        return self.simpler or here > (1 + self.tolerance) * there


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkDoubt:
    """What hangs on the rate between nodes, which was not measured."""

    kind: FigureKind
    #: a device's, one direction
    bytes_per_s: float
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The recommendation among the plans that ``auto_parallelize`` applies."""

    #: None where none of them can run
    case: Case | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The answer of ``recommend``. ``chosen`` is None when nothing fits; then ``nearest_fit`` says more."""

    facts: Facts
    chosen: Case | None
    rungs: tuple[Rung, ...]
    #: the best plan of every other strategy that fits, fastest first
    alternatives: tuple[Case, ...]
    rejected: tuple[Rejection, ...]
    nearest_fit: tuple[NearestFit, ...]
    #: findings of the chosen plan
    findings: tuple[Finding, ...]
    #: share by which a lower rung may be slower than the fastest and still be taken
    tolerance: float
    #: plans of the space
    considered: int
    #: the fastest plan of all rungs; differs from ``chosen`` within the tolerance
    fastest: Case | None = None
    #: the strategy that the user fixed, with what would have been chosen
    forced_strategy: str | None = None
    unforced: Case | None = None
    #: plans that no other beats in both memory and time, the fastest first; empty where nobody asked
    front: tuple[Case, ...] = ()
    #: what the recommendation would be at other rates between nodes; None where nobody asked, or where it
    #: is no question
    network_doubt: NetworkDoubt | None = None
    #: what would be recommended for a global batch close by that divides better; None where nobody asked,
    #: or where it is no faster
    nearby_batch: Case | None = None
    #: what would be recommended if the loss made its logits in chunks; None where nobody asked, or where
    #: that is no faster
    chunked_loss: Case | None = None
    #: what would be recommended with torch.compile on every block; None where nobody asked, or where that
    #: is no faster
    compiled: Case | None = None
    #: what would be recommended if states were offloaded to host memory; None where nobody asked, or where
    #: that is no faster
    offloaded: Case | None = None
    #: what ``auto_parallelize`` applies instead of the chosen plan; None where nobody asked, or where it
    #: applies that one
    applied: Applied | None = None
    #: where nothing fits, the fastest plan if memory were no limit: what nearest fits are held against
    memory_aside: Case | None = None
    #: plans that no rule was asked about, because a bound showed that they are slower than what is shown;
    #: counts of ``rejected`` are then the least that rules remove
    bounded: int = 0

    @property
    def may_be_a_tie(self) -> bool:
        """The 80 % intervals of the chosen and the fastest plan overlap."""
        if self.chosen is None or self.fastest is None or self.chosen == self.fastest:
            return False
        return self.chosen.estimate.time.may_tie(self.fastest.estimate.time)
