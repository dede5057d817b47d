"""What a traced module keeps and makes under autocast, beside the trace in which all is in one format."""

from __future__ import annotations

from dataclasses import dataclass

from parastrat.model import Autocast
from parastrat.runtime.tracing.moments import busy_moments
from parastrat.runtime.tracing.traced import Traced, traced_segments
from parastrat.runtime.tracing.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Casting:
    """A module's forward and backward under autocast."""

    #: of each segment
    ways: list[Autocast]
    #: names of the parameters of which autocast makes short copies, with the segment that makes each
    names: dict[str, int]

    def of(self, name: str) -> tuple[int, ...]:
        """Return the segment that makes a copy of a parameter; none where there is none."""
        return (self.names[name],) if name in self.names else ()


def casting_of(small: Tracker, large: Tracker) -> Casting:
    """Return what traces of ``SAMPLES`` under autocast tell.

    Args:
        small: the trace of fewer samples.
        large: that of more.
    """
    names = dict(small.cast)
    for index, segment in enumerate(small.segments):
        if segment.twin is not None:
            # of a block that did not run the parameters are those of its twin, in the same order
            own = zip(segment.parameters, small.segments[segment.twin].parameters, strict=False)
            for name in (name for name, of_twin in own if of_twin in small.cast):
                names.setdefault(name, index)
    return Casting(ways=[_way(each) for each in traced_segments(small, large)], names=names)


def _way(traced: Traced) -> Autocast:
    return Autocast(
        activations=traced.activations,
        working=traced.bytes_of(lambda own: own.working),
        boundary_bytes=traced.crossing.replicated,
        boundary_fixed=traced.crossing.fixed,
        awaited=traced.bytes_of(lambda own: own.awaited),
        busy=busy_moments(traced),
    )
