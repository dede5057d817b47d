"""Predictions beside measurements: what was compared, what was not, and what the errors come to."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

from parastrat.estimate import Verdict
from parastrat.rungs import lowest_near

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


#: so many rows are told as the worst
_WORST = 10
#: two runs are in order or they are not
_LEAST_RANKED = 3


class Quantity(StrEnum):
    """What is compared."""

    STEP_TIME = "step_time_s"
    PEAK_MEMORY = "peak_memory_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One quantity of one run."""

    id: str
    stack: str
    quantity: Quantity
    #: None: the run ended without, as out of memory, or its source says nothing
    measured: float | None
    predicted: float
    #: the 80 % interval of a step; of memory the estimate less and plus its margin
    low: float
    high: float
    verdict: Verdict
    #: the run ended out of memory
    out_of_memory: bool = False

    @property
    def error(self) -> float | None:
        """``predicted / measured - 1``; None without a measurement."""
        return None if self.measured is None else self.predicted / self.measured - 1

    @property
    def is_misjudged(self) -> bool:
        """Whether it ran and was refused, or ran out of memory and was promised."""
        return self.verdict is (Verdict.FITS if self.out_of_memory else Verdict.DOES_NOT_FIT)

    @property
    def origin(self) -> str:
        """The table that the run is of, as ids begin with its name."""
        return self.id.partition("-")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A run that was not predicted."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one quantity, as shares of the measurements."""

    n: int
    #: mean and median size, and that which nine of ten do not exceed
    mape: float
    median: float
    p90: float
    #: mean, with its sign
    bias: float
    #: median of |ln(predicted / measured)|, which does not flatter who predicts low
    median_log: float
    #: share of the measurements within the interval
    inside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How predictions order runs that differ in their parallelism alone, over groups of at least three."""

    groups: int
    #: mean over groups of Kendall's tau: pairs in the right order less those in the wrong one, over all
    tau: float
    #: mean share by which the run that is predicted fastest is slower than the fastest of its group
    regret: float
    #: the same of the fastest among the three that are predicted fastest
    regret_of_three: float
    #: the same of the run that the ladder takes with its usual tolerance
    regret_of_ladder: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One of several runs that differ in their parallelism alone."""

    #: seconds of a step
    predicted: float
    measured: float
    #: of the ladder, which its strategy stands on
    rung: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Every run of a table is among the compared or among the skipped."""

    rows: tuple[Compared, ...]
    skipped: tuple[Skipped, ...]
    #: spreads, largest over least less one, of runs that no column tells apart
    noise: Mapping[Quantity, tuple[float, ...]]
    #: of step times; None where no group of runs differs in parallelism alone
    ranking: Ranking | None = None

    def of(self, quantity: Quantity) -> tuple[Compared, ...]:
        """Return what was measured of a quantity."""
        return tuple(row for row in self.rows if row.quantity is quantity and row.measured is not None)

    def groups(self, quantity: Quantity) -> dict[tuple[str, str], list[Compared]]:
        """Return what was measured of a quantity by its table and stack."""
        found: dict[tuple[str, str], list[Compared]] = {}
        for row in self.of(quantity):
            found.setdefault((row.origin, row.stack), []).append(row)
        return found

    def worst(self, quantity: Quantity) -> list[tuple[Compared, float]]:
        """Return the rows that are most off, with their errors."""
        known = [(row, row.error) for row in self.of(quantity) if row.error is not None]
        return sorted(known, key=lambda each: -abs(each[1]))[:_WORST]

    def fates(self, *, out_of_memory: bool) -> tuple[Compared, ...]:
        """Return the runs whose memory is told, of those that ran or of those that ran out of it."""
        memory = (row for row in self.rows if row.quantity is Quantity.PEAK_MEMORY)
        return tuple(row for row in memory if row.out_of_memory is out_of_memory)

    @property
    def summaries(self) -> dict[Quantity, Summary]:
        """Each quantity that was measured, summed up."""
        return {quantity: summary_of(rows) for quantity in Quantity if (rows := self.of(quantity))}


def verdicts_told(rows: Sequence[Compared]) -> str:
    """Return the verdicts on some runs, counted."""
    counts = Counter(row.verdict for row in rows)
    return ", ".join(f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict])


def ranking_of(groups: Sequence[Sequence[Rival]]) -> Ranking | None:
    """Return how predictions order groups of runs, those of three and more."""
    large = [group for group in groups if len(group) >= _LEAST_RANKED]
    if not large:
        return None
    ordered = [sorted(group, key=lambda rival: (rival.predicted, rival.measured)) for group in large]

    def regret(taken: Callable[[Sequence[Rival]], float]) -> float:
        return statistics.fmean(
            taken(group) / min(rival.measured for rival in group) - 1 for group in ordered
        )

    return Ranking(
        groups=len(large),
        tau=statistics.fmean(map(_tau, large)),
        regret=regret(lambda group: group[0].measured),
        regret_of_three=regret(lambda group: min(rival.measured for rival in group[:3])),
        regret_of_ladder=regret(lambda group: _by_ladder(group).measured),
    )


def _by_ladder(ordered: Sequence[Rival]) -> Rival:
    """Return the run that the ladder takes, of runs from the one that is predicted fastest on."""
    best: dict[int, Rival] = {}
    for rival in ordered:
        best.setdefault(rival.rung, rival)
    return best[lowest_near({rung: rival.predicted for rung, rival in best.items()})]


def _tau(group: Sequence[Rival]) -> float:
    signs = [
        math.copysign(1, (one.predicted - other.predicted) * (one.measured - other.measured))
        for one, other in combinations(group, 2)
        if one.predicted != other.predicted and one.measured != other.measured
    ]
    return statistics.fmean(signs) if signs else 0.0


def summary_of(rows: Sequence[Compared]) -> Summary:
    """Return what the errors of some measured rows come to; of at least one."""
    errors = [each.error for each in rows if each.error is not None]
    # not from errors: one that is next to -1 is rounded to it
    ratios = [each.predicted / each.measured for each in rows if each.measured is not None]
    sizes = sorted(abs(error) for error in errors)
    inside = [each.low <= each.measured <= each.high for each in rows if each.measured is not None]
    return Summary(
        n=len(errors),
        mape=statistics.fmean(sizes),
        median=statistics.median(sizes),
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
        bias=statistics.fmean(errors),
        median_log=statistics.median(abs(math.log(ratio)) for ratio in ratios),
        inside=statistics.fmean(inside),
    )
