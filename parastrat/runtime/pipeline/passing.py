"""What passes from stage to stage, as a few lines of torch can say it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from parastrat.emit.staging import Alike
from parastrat.runtime.pipeline.route import Event, TensorShape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.emit.staging import Sent
    from parastrat.runtime.pipeline.cut import Cut
    from parastrat.runtime.pipeline.flow import Source

Stages = tuple[tuple[str, ...], ...]


class NotStagedError(Exception):
    """A few lines do not say this pipeline; the message is the reason."""


def stages_of(cut: Cut, parameters: Sequence[str]) -> Stages:
    """Return the parts that each stage runs, in the order of the forward.

    What is called several times and has no parameters runs in all stages, and is named in none.

    Args:
        cut: of the model.
        parameters: names of all, those of tied ones each.
    """
    events = cut.route.events
    calls = Counter(event.part for event in events)
    free = {part for part, count in calls.items() if count > 1 and not any_inside(parameters, part)}
    return tuple(
        tuple(
            dict.fromkeys(event.part for event in events[span.begin : span.end] if event.part not in free)
        )
        for span in cut.spans
    )


def any_inside(names: Sequence[str], part: str) -> bool:
    """Return whether one of these weights is a part's."""
    return any(name.startswith(f"{part}.") for name in names)


def alike_between(cut: Cut, stages: Stages, inputs: Any) -> Alike | None:
    """Return the tensor that passes every cut, if one does: the output of the last part before it."""
    if not isinstance(inputs, torch.Tensor) or in_several(stages):
        return None
    found: list[TensorShape] = []
    for span in cut.spans[1:]:
        crossing, before = cut.route.crossing(span.begin), cut.route.events[span.begin - 1]
        of_last = len(crossing) == 1 and crossing[0].event == span.begin - 1
        if not of_last or len(before.leaves) != 1 or not before.spec.is_leaf():
            return None
        # what writes to it is told when the emitted code is tried
        found.append(replace(cut.route.shape_of(crossing[0]), changed=False))
    first = found[0]
    if any(shape != first for shape in found) or first.shape[0] != len(inputs):
        return None
    by_position = not inputs.is_floating_point() and first.shape[: inputs.ndim] == inputs.shape
    return Alike(
        sizes=tuple(first.shape[inputs.ndim if by_position else 1 :]),
        dtype=str(first.dtype).removeprefix("torch."),
        by_position=by_position,
    )


def in_several(stages: Stages) -> set[str]:
    """Return the parts that run in several stages."""
    return {
        part for part, count in Counter(part for stage in stages for part in stage).items() if count > 1
    }


def received_by(cut: Cut, stages: Stages) -> tuple[tuple[Sent, ...], ...]:
    """Return what each stage receives; nothing for the first.

    Raises:
        NotStagedError: a stage would run again what it receives.
    """
    return tuple(
        tuple(_sent(cut, source, stages, span.stage) for source in cut.route.crossing(span.begin))
        if span.stage
        else ()
        for span in cut.spans
    )


def _sent(cut: Cut, source: Source, stages: Stages, stage: int) -> Sent:
    event = cut.route.events[source.event]
    calls = [other for other in cut.route.events if other.part == event.part]
    if len(calls) > 1 or event.part in stages[stage]:
        raise NotStagedError(
            f"{event.part} is called several times, and a call of it passes to stage {stage}"
        )
    return event.part, _place(event, source.index)


def _place(event: Event, index: int) -> int:
    """Return the place of one of an event's tensors among all that it returns."""
    return [place for place, leaf in enumerate(event.leaves) if isinstance(leaf, TensorShape)][index]
