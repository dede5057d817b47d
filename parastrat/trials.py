"""Plans that ran for a few steps, and which of them to keep."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Case

#: what asks a script's process for a trial, as JSON: ``path``, where rank 0 writes a ``Timed``, and
#: ``warm_up`` and ``steps``, how many of each
TRIAL_VARIABLE = "PARASTRAT_TRIAL"
#: medians of two plans this close are told apart by luck, however quiet the machine is
_ALIKE = 0.02
#: of fewer steps there are no quartiles
_LEAST_STEPS = 4


class Loop(StrEnum):
    """How a script takes a step."""

    #: forward, ``loss.backward()``, ``optimizer.step()``: each backward is a step's only one
    PLAIN = "plain"
    #: by ``parastrat.forward_backward``, which any plan goes with
    FORWARD_BACKWARD = "forward_backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What a script's first steps were."""

    #: of each step behind those that warm up
    seconds: tuple[float, ...]
    #: that all ranks trained together in a step: the same in each, or the least and the most
    samples: tuple[int, int]
    loop: Loop
    #: most that the allocator of rank 0's device had in use; None: of processors it is not known
    peak_bytes: int | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Half of the range of the middle half of the steps, as a share of the median."""
        if len(self.seconds) < _LEAST_STEPS:
            return (max(self.seconds) - min(self.seconds)) / 2 / self.median
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return (high - low) / 2 / self.median

    def with_more(self, other: Timed) -> Timed:
        """Return this with the steps of another run of the same plan."""
        peaks = [peak for peak in (self.peak_bytes, other.peak_bytes) if peak is not None]
        ends = [*self.samples, *other.samples]
        return replace(
            self,
            seconds=(*self.seconds, *other.seconds),
            samples=(min(ends), max(ends)),
            peak_bytes=max(peaks, default=None),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A plan, with what became of it."""

    case: Case
    #: None: it did not get so far
    timed: Timed | None = None
    #: why there is no time to compare
    failure: str | None = None

    @property
    def seconds(self) -> float | None:
        """The median step; None where it cannot be compared."""
        return None if self.timed is None or self.failure is not None else self.timed.median

    @property
    def spread(self) -> float:
        """That of its steps; 0 where none were timed."""
        return 0.0 if self.timed is None else self.timed.spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The plan that was given, and others of its job, beside each other; the given one is the first."""

    trials: tuple[Trial, ...]
    #: None: no plan ran
    kept: Trial | None

    @property
    def given(self) -> Trial:
        return self.trials[0]


def kept_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest of some plans; the first where that one is faster by no more than steps vary."""
    ran = [(trial.seconds, place) for place, trial in enumerate(trials) if trial.seconds is not None]
    if not ran:
        return None
    (least, place), first = min(ran), trials[0]
    best = trials[place]
    noise = max(_ALIKE, best.spread, first.spread)
    return first if first.seconds is not None and first.seconds <= (1 + noise) * least else best
