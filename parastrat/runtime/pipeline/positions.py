"""What passes between pipeline stages whose ranks divide a sequence: each sends its positions alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from parastrat.errors import WrapError
from parastrat.runtime.context_parallel.stream import SEQUENCE, Division, Row, Stream
from parastrat.runtime.pipeline.route import Event, Route, TensorShape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from parastrat.runtime.pipeline.cut import Cut
    from parastrat.runtime.tensor_parallel.extent import Extent


def beside_stages(division: Division, cut: Cut) -> Division:
    """Return how positions are divided in a module that is cut.

    Raises:
        WrapError: if a block runs several times: each time it would have to know where the stream begins;
            or a forward is followed by smaller parts than blocks.
    """
    route = cut.route
    inside = _events_of(division, route)
    runs = Counter(route.events[index].part for index in inside)
    repeated = next((part for part, times in runs.items() if times > 1), None)
    if repeated is not None or not inside:
        reason = f"{repeated} runs again" if inside else f"no call of {division.container}'s blocks is seen"
        raise WrapError(
            f"positions that cp divides cannot pass from stage to stage where {reason}",
            hint="plan without one of them: parastrat recommend --cp 1, or --pp 1",
        )
    ends = {span.end for span in cut.spans[:-1]}
    head = _place_of_head(division, route)
    return replace(
        division,
        # what a stage sends is no logits of shares
        loss=division.loss and head + 1 not in ends,
        apart=any(inside[-1] < end <= head for end in ends),
    )


def route_of_shares(route: Route, stream: Stream) -> Route:
    """Return the way of a forward in which blocks return this rank's positions.

    Args:
        route: of all positions.
        stream: of the model.

    Raises:
        WrapError: if these do not divide.
    """
    division, inside = stream.division, _events_of(stream.division, route)
    divided = set(inside[:-1])
    if not division.joined_behind_blocks:
        divided |= set(range(inside[-1], _place_of_head(division, route)))
    length = _first(route.events[inside[0]]).shape[SEQUENCE]
    stream.positions.check(length, stream.further)
    events = [
        _of_share(event, length, stream.positions.ranks) if index in divided else event
        for index, event in enumerate(route.events)
    ]
    return replace(route, events=tuple(events))


def rows_of(division: Division, extent: Extent, parts: Mapping[str, nn.Module]) -> list[Row]:
    """Return the blocks that run one after the other here.

    Args:
        division: of the model's positions.
        extent: its blocks, and which of them are in this rank's stages.
        parts: the blocks by name, as they are called; at least those of this rank.
    """
    inside = list(filter(division.has, extent.names))
    runs = [list(filter(division.has, run)) for run in extent.runs]
    return [
        Row(blocks=[parts[name] for name in run], first=run[0] == inside[0], last=run[-1] == inside[-1])
        for run in runs
        if run
    ]


def _events_of(division: Division, route: Route) -> list[int]:
    """Return the calls of blocks that positions pass through."""
    return [index for index, event in enumerate(route.events) if division.has(event.part)]


def _place_of_head(division: Division, route: Route) -> int:
    """Return the call of the head, or the place behind all calls where there is none."""
    calls = (index for index, event in enumerate(route.events) if event.part == division.head)
    return next(calls, len(route.events))


def _first(event: Event) -> TensorShape:
    """Return the first tensor that a call returns: of blocks the stream."""
    return event.tensors[0]


def _of_share(event: Event, length: int, ranks: int) -> Event:
    """Return a call that returns a share of what first it returns, where that has all positions."""
    shape = list(_first(event).shape)
    if shape[SEQUENCE : SEQUENCE + 1] != [length]:
        return event
    shape[SEQUENCE] = length // ranks
    leaves, own = list(event.leaves), replace(_first(event), shape=torch.Size(shape))
    leaves[leaves.index(_first(event))] = own
    return replace(event, leaves=tuple(leaves))
