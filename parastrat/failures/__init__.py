"""What libraries say where a job fails, what that means, and what to change.

Matched against what ranks write: of several that fit a text, the one that says most of the cause is its
reading. What only follows from another rank's end comes last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from parastrat.failures.failure import Blames, Failure
from parastrat.failures.machines import MACHINES
from parastrat.failures.networks import NETWORKS, UNSAID
from parastrat.failures.scripts import MIXTURE, OF_DIVIDED, PEERS, SCRIPTS

__all__ = ["FAILURES", "MIXTURE", "OF_DIVIDED", "Blames", "Failure", "Told", "failures_in", "known_failure"]

FAILURES: tuple[Failure, ...] = (*MACHINES, *SCRIPTS, *NETWORKS, *UNSAID, *PEERS)


def known_failure(text: str) -> Failure | None:
    """Return what a text tells of, the likeliest cause of several; None where nothing known is in it."""
    return next((each for each in FAILURES if each.says.search(text)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Where a log first tells of a failure."""

    failure: Failure
    #: counted from 1
    line: int
    text: str


def failures_in(lines: Iterable[str]) -> tuple[Told, ...]:
    """Return the failures that a log tells of, each once: causes first, in the order of their lines."""
    first: dict[Failure, Told] = {}
    for number, line in enumerate(lines, 1):
        failure = known_failure(line)
        if failure is not None and failure not in first:
            first[failure] = Told(failure=failure, line=number, text=line.strip())
    return tuple(sorted(first.values(), key=lambda told: (told.failure.blames is Blames.PEER, told.line)))
