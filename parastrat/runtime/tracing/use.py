"""Which parameters of a module the forward reads, and the loss reaches: the others have no gradients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch

from parastrat.runtime.tracing.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A module's parameters in a step."""

    #: of each the segments that read it; of one that none does the segment that holds it
    segments: dict[str, list[int]]
    #: names of those that the forward does not read
    idle: list[str]
    #: and of those that get no gradient from the model's own loss
    unreached: list[str]
    caveats: tuple[str, ...]


def use_of(named: Mapping[str, torch.Tensor], tracker: Tracker) -> Use:
    """Return the use of a module's parameters in a step that was watched.

    A loss that merely the output suggests is not held to reach little: that of the training may read more,
    such as what a trunk pools beside its hidden states.
    """
    segments: dict[str, list[int]] = {name: [] for name in named}
    for index, segment in enumerate(tracker.segments):
        for name in segment.parameters:
            if name in segments:
                segments[name].append(index)
    idle = [name for name, indices in segments.items() if not indices]
    reached = _reached(tracker)
    missed = [
        name
        for name, indices in segments.items()
        if indices and named[name].requires_grad and name not in reached
    ]
    for name in idle:
        segments[name] = [_owner(name, tracker)]
    return Use(
        segments=segments,
        idle=idle,
        unreached=missed if tracker.behind.own_loss else [],
        caveats=(
            *_said(named, idle, "take no part in the forward"),
            *_said(
                named,
                missed,
                "get no gradient from the model's loss"
                if tracker.behind.own_loss
                else "get no gradient from the loss that its output suggests, and count as trained",
            ),
        ),
    )


def _reached(tracker: Tracker) -> set[str]:
    """Return the names of the parameters with gradients; of a block that did not run as of its twin."""
    reached = set(tracker.behind.reached)
    for index, segment in enumerate(tracker.segments):
        if segment.twin is not None and index in tracker.behind.reached_segments:
            own = zip(segment.parameters, tracker.segments[segment.twin].parameters, strict=False)
            reached |= {name for name, of_twin in own if of_twin in tracker.behind.reached}
    return reached


def _owner(name: str, tracker: Tracker) -> int:
    """Return the segment of the block that holds a parameter by name; the first one for others."""
    for index, segment in enumerate(tracker.segments):
        if segment.block and name.startswith(f"{segment.block}."):
            return index
    return 0


def _said(named: Mapping[str, torch.Tensor], names: Collection[str], why: str) -> list[str]:
    count = sum(named[name].numel() for name in names)
    return [f"{count:,} parameters ({next(iter(names))}, ...) {why}"] if names else []
