"""When each rank of a pipeline computes what, until the last backward has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from parastrat.timeline.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from parastrat.timeline.orders import Action
    from parastrat.units import Seconds


class Span(NamedTuple):
    """An action with its begin and end, seconds from the step's begin."""

    action: Action
    start: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Seconds that one stage takes for one micro-batch, and the rank that holds it."""

    rank: int
    forward: Seconds
    #: with what is computed again
    inputs: Seconds
    weights: Seconds

    @property
    def seconds(self) -> dict[Kind, Seconds]:
        """The seconds of each kind of action."""
        return {
            Kind.FORWARD: self.forward,
            Kind.BACKWARD: self.inputs + self.weights,
            Kind.INPUTS: self.inputs,
            Kind.WEIGHTS: self.weights,
        }


def run(
    ordered: Sequence[Sequence[Action]], stages: Sequence[Stage], send: Seconds
) -> tuple[tuple[Span, ...], ...]:
    """Return every rank's actions with their times: each as soon as its rank is free and its input there.

    Args:
        ordered: of each rank, as ``orders`` gives them.
        stages: by number.
        send: from one rank to another, freely beside what both compute. A link takes one after the other,
            and one in each direction at once.

    Raises:
        ValueError: the actions wait for each other, which no schedule of torch does.
    """
    #: when the output of a stage is where it is read
    there: dict[tuple[bool, int, int], Seconds] = {}
    links: dict[tuple[int, int], Seconds] = {}
    spans: list[list[Span]] = [[] for _ in ordered]
    free = [0.0] * len(ordered)
    seconds = [stage.seconds for stage in stages]
    waiting = list(range(len(ordered)))
    while waiting:
        moved = False
        for rank in tuple(waiting):
            own, done = ordered[rank], spans[rank]
            while len(done) < len(own):
                ready = _ready(own[len(done)], len(stages), there)
                if ready is None:
                    break
                kind, stage, batch = action = own[len(done)]
                start = max(free[rank], ready)
                free[rank] = end = start + seconds[stage][kind]
                done.append(Span(action, start, end))
                moved = True
                reader = stage + 1 if kind is Kind.FORWARD else stage - 1
                if kind is Kind.WEIGHTS or reader in (-1, len(stages)):
                    continue
                link = rank, stages[reader].rank
                if link[1] != rank:
                    links[link] = end = max(end, links.get(link, 0.0)) + send
                there[kind is Kind.FORWARD, stage, batch] = end
            if len(done) == len(own):
                waiting.remove(rank)
        if not moved:
            raise ValueError(f"ranks {waiting} wait for each other")
    return tuple(tuple(own) for own in spans)


def _ready(action: Action, stages: int, there: Mapping[tuple[bool, int, int], Seconds]) -> Seconds | None:
    """Return when an action's input is there; None if what makes it has not run."""
    kind, stage, batch = action
    forward = kind is Kind.FORWARD
    source = stage - 1 if forward else stage + 1
    if kind is Kind.WEIGHTS or source in (-1, stages):
        return 0.0
    return there.get((forward, source, batch))
