"""When work on the streams of one device begins and ends, where streams slow each other down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.timeline.kinds import Kind
    from parastrat.units import Seconds

#: what is left of work that has ended, by rounding
_NOTHING = 1e-12


class Work(NamedTuple):
    """Something that a stream does."""

    kind: Kind
    name: str
    stream: str
    #: with the device for itself
    seconds: Seconds
    #: places of what must have ended before, on other streams
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How streams slow each other down."""

    #: the stream that computes; all others move bytes over one network, of which each has an equal share
    compute: str
    #: of its speed beside a collective, which takes some processors and memory bandwidth; 0 where it stops
    beside: float

    def rates(self, running: Sequence[str]) -> list[float]:
        """Return the speed of each running stream."""
        moving = sum(stream != self.compute for stream in running)
        return [
            (self.beside if moving else 1.0) if stream == self.compute else 1.0 / moving
            for stream in running
        ]


class Passed(NamedTuple):
    """Work with its begin and end, seconds from the step's begin."""

    work: Work
    start: Seconds
    end: Seconds


def passed(works: Sequence[Work], sharing: Sharing) -> tuple[Passed, ...]:
    """Return when each work begins and ends: streams take theirs one after the other, in the order given.

    Raises:
        ValueError: some wait for each other.
    """
    queues: dict[str, list[int]] = {}
    for place, work in reversed(tuple(enumerate(works))):
        queues.setdefault(work.stream, []).append(place)
    left = [work.seconds for work in works]
    start: list[Seconds | None] = [None] * len(works)
    end: list[Seconds | None] = [None] * len(works)
    now = 0.0
    while any(queues.values()):
        heads = [queue[-1] for queue in queues.values() if queue]
        running = [place for place in heads if all(end[other] is not None for other in works[place].after)]
        if not running:
            raise ValueError(f"{[works[place].name for place in heads]} wait for each other")
        rates = sharing.rates([works[place].stream for place in running])
        lasts = min(left[place] / rate for place, rate in zip(running, rates, strict=True) if rate > 0)
        for place, rate in zip(running, rates, strict=True):
            if start[place] is None:
                start[place] = now
            left[place] -= lasts * rate
        now += lasts
        for place in running:
            if left[place] <= _NOTHING * max(works[place].seconds, 1.0):
                end[place] = now
                queues[works[place].stream].pop()
    return tuple(
        Passed(work, begun, ended)
        for work, begun, ended in zip(works, start, end, strict=True)
        if begun is not None and ended is not None
    )
