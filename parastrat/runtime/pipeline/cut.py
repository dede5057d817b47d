"""Which events of a forward, and with them which parameters, belong to which stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from parastrat.errors import WrapError
from parastrat.ranks.stages import cut_chain
from parastrat.runtime.pipeline.flow import Kind, Source
from parastrat.runtime.pipeline.route import Route
from parastrat.runtime.tensors.slots import Slot, slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The events of one stage."""

    stage: int
    stages: int
    #: index of its first event
    begin: int
    #: index of the first event behind it
    end: int

    @property
    def is_last(self) -> bool:
        return self.stage == self.stages - 1

    def __contains__(self, event: int) -> bool:
        return self.begin <= event < self.end

    def needs(self, route: Route) -> frozenset[Source]:
        """Return all that its events, and for the last stage the output, are computed from."""
        own = frozenset[Source]().union(*(event.needs for event in route.events[self.begin : self.end]))
        return own | route.end if self.is_last else own


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Where a module is cut."""

    #: of the example
    route: Route
    spans: tuple[Span, ...]
    #: stages that hold each parameter
    owners: dict[str, tuple[int, ...]]

    @property
    def ends(self) -> frozenset[str]:
        """Names of the parts whose outputs pass from stage to stage."""
        events = self.route.events
        crossing = (self.route.crossing(span.begin) for span in self.spans[1:])
        return frozenset(events[source.event].part for sources in crossing for source in sources)


def spans_of(
    module: nn.Module, route: Route, stages: int, joined: Sequence[frozenset[str]] = ()
) -> tuple[Span, ...]:
    """Cut the events into contiguous stages, by the FLOPs of their forward, as estimates do.

    Every stage begins with something to train, but for what comes before the first.

    Args:
        module: the whole.
        route: of its forward.
        stages: how many.
        joined: names of modules between which activations are divided, which no stage could send.

    Raises:
        WrapError: if there are fewer places to cut than the plan needs.
    """
    inside = _inside(route, joined)
    reasons = {after: inside.get(after) or route.why_not(after) for after in range(1, len(route.events))}
    trained = {slot.name for slot in slots_of(module) if slot.is_parameter and slot.tensor.requires_grad}
    groups: list[list[int]] = [[]]
    trains = False
    for index, event in enumerate(route.events):
        own = any(source.name in trained for source in event.needs)
        if own and trains and reasons[index] is None:
            groups.append([])
            trains = False
        groups[-1].append(index)
        trains = trains or own
    if len(groups) < stages:
        why = next((reason for reason in reasons.values() if reason is not None), None)
        if why is None and any(
            not slot.tensor.requires_grad for slot in slots_of(module) if slot.is_parameter
        ):
            why = "every stage needs parameters of its own that are trained, and some are frozen"
        raise WrapError(
            f"{type(module).__name__} can be cut into {len(groups)} stages at most; the plan has {stages}"
            + (f": {why}" if why else ""),
            hint=f"plan --pp {len(groups)}" if len(groups) > 1 else _WITHOUT,
        )
    places = cut_chain([sum(route.events[event].flops for event in group) for group in groups], stages)
    held: dict[int, list[int]] = defaultdict(list)
    for group, stage in zip(groups, places, strict=True):
        held[stage] += group
    return tuple(
        Span(stage=stage, stages=stages, begin=held[stage][0], end=held[stage][-1] + 1)
        for stage in range(stages)
    )


def _inside(route: Route, joined: Sequence[frozenset[str]]) -> dict[int, str]:
    """Return the places between modules that must be in one stage, each with the reason."""
    found: dict[int, str] = {}
    for names in joined:
        at = [
            index
            for index, event in enumerate(route.events)
            if any(f"{name}.".startswith(f"{event.part}.") for name in names)
        ]
        if len({route.events[index].part for index in at}) > 1:
            reason = f"tensor parallelism divides what is between {', '.join(sorted(names))}"
            found |= dict.fromkeys(range(at[0] + 1, at[-1] + 1), reason)
    return found


_WITHOUT = "plan --pp 1 with FSDP2 or tensor parallelism instead"


def owners_of(route: Route, spans: tuple[Span, ...], slots: list[Slot]) -> dict[str, tuple[int, ...]]:
    """Return for every parameter the stages that hold it, in order; several for tied ones.

    What no event reads goes where the part around it is, else to the first stage.
    """
    readers: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        for source in span.needs(route):
            if source.kind is Kind.PARAMETER:
                readers[source.name].append(span.stage)
    return {
        slot.name: tuple(readers.get(slot.name) or [_around(slot.name, route, spans)])
        for slot in slots
        if slot.is_parameter
    }


def check_owners(route: Route, spans: tuple[Span, ...], owners: dict[str, tuple[int, ...]]) -> None:
    """Refuse a forward whose stages would need what they do not hold.

    Raises:
        WrapError: naming the parameter, or what cannot be sent.
    """
    if len(route.events) != spans[-1].end:
        raise WrapError(
            f"this batch takes the forward through {len(route.events)} blocks; {spans[-1].end} were cut",
            hint="give auto_parallelize sample_inputs= like the batches of training",
        )
    for span in spans:
        why = route.why_not(span.begin) if span.stage else None
        missing = [
            source.name
            for source in span.needs(route)
            if source.kind is Kind.PARAMETER and span.stage not in owners[source.name]
        ]
        if missing or why:
            raise WrapError(
                f"for this batch stage {span.stage} reads {missing[0]}, which it does not hold"
                if missing
                else f"this batch cannot be cut before {route.events[span.begin].part}: {why}",
                hint="give auto_parallelize sample_inputs= like the batches of training",
            )


def _around(name: str, route: Route, spans: tuple[Span, ...]) -> int:
    event = next((i for i, e in enumerate(route.events) if name.startswith(f"{e.part}.")), 0)
    return next(span.stage for span in spans if event in span)


def present_parts(route: Route, span: Span) -> frozenset[str]:
    """Return the parts that run on a stage: its events, and what only reads inputs."""
    return frozenset(name for name, event in route.calls if event is None or event in span)
