"""One segment in both traces, with what tensor parallelism divides of its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from parastrat.model import Split
from parastrat.runtime.tracing.lifetimes import Measured, measured
from parastrat.runtime.tracing.samples import divided, line, share_of
from parastrat.runtime.tracing.tracker import Tracker
from parastrat.saved import Activations, Saved

#: fields of ``Saved`` by what divides them
_FIELDS = {Split.TENSOR: "tensor", Split.SEQUENCE: "sequence", Split.VOCABULARY: "loss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """One segment's bytes."""

    #: for ``SAMPLES[0]`` samples
    small: Measured
    #: for ``SAMPLES[1]``
    large: Measured
    #: both without what is divided in one way, by the field of ``Saved``
    rest: Mapping[str, tuple[Measured, Measured]]
    #: both without all that is divided
    undivided: tuple[Measured, Measured]

    @property
    def activations(self) -> Activations:
        """What the segment keeps by recompute policy, for one sample."""
        return Activations(
            none=self.bytes_of(lambda own: own.kept),
            attention=self.bytes_of(lambda own: own.kept - own.core),
            selective=self.bytes_of(lambda own: own.selective),
            full=self.bytes_of(lambda own: own.checkpointed),
        )

    @property
    def crossing(self) -> Saved:
        """What is alive at the segment's end and read later."""
        return line(self.small.boundary, self.large.boundary)

    def bytes_of(self, read: Callable[[Measured], float]) -> Saved:
        """Return some of the bytes for one sample."""
        small, large = read(self.small), read(self.large)
        shares = {
            name: share_of((small, read(few)), (large, read(many)))
            for name, (few, many) in self.rest.items()
        }
        return divided(line(small, large), shares)


def traced_segments(small: Tracker, large: Tracker) -> Iterator[Traced]:
    """Yield the bytes of every segment of two traces, which have the same segments."""
    whole = _pairs(small, large, frozenset())
    ways = _FIELDS if small.dividing.divides else {}
    without = [frozenset({way}) for way in ways]
    *rests, undivided = (_pairs(small, large, each) for each in (*without, frozenset(ways)))
    for few, many in whole:
        rest = {name: next(pairs) for name, pairs in zip(ways.values(), rests, strict=True)}
        yield Traced(small=few, large=many, rest=rest, undivided=next(undivided))


def _pairs(
    small: Tracker, large: Tracker, without: frozenset[Split]
) -> Iterator[tuple[Measured, Measured]]:
    return zip(measured(small, without), measured(large, without), strict=True)
