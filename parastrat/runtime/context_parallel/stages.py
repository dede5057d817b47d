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

    A head in a stage behind that of the last block takes all of them.

    Raises:
        WrapError: if a block runs several times: each time it would have to know where the stream begins.
    """
    route = cut.route
    inside = _events_of(division, route)
    runs = Counter(route.events[index].part for index in inside)
    repeated = next((part for part, times in runs.items() if times > 1), None)
    if repeated is not None:
        raise WrapError(
            f"positions that cp divides cannot pass from stage to stage where {repeated} runs again",
            hint="plan without one of them: parastrat recommend --cp 1, or --pp 1",
        )
    crossing = [source for span in cut.spans[1:] for source in route.crossing(span.begin)]
    if division.joined_behind_blocks or all(source.event < inside[-1] for source in crossing):
        return division
    return replace(division, head="", loss=False)


def route_of_shares(route: Route, stream: Stream) -> Route:
    """Return the way of a forward in which blocks return this rank's positions.

    Args:
        route: of all positions.
        stream: of the model.

    Raises:
        WrapError: if these do not divide.
    """
    inside = _events_of(stream.division, route)
    divided = set(inside if not stream.division.joined_behind_blocks else inside[:-1])
    events = [
        _of_share(event, stream) if index in divided else event for index, event in enumerate(route.events)
    ]
    return replace(route, events=tuple(events))


def rows_of(division: Division, extent: Extent, parts: Mapping[str, nn.Module]) -> list[Row]:
    """Return the blocks that run one after the other here.

    Args:
        division: of the model's positions.
        extent: its blocks, and which of them are in this rank's stages.
        parts: the blocks by name, as they are called; at least those of this rank.
    """
    inside = [name for name in extent.names if name.rpartition(".")[0] == division.container]
    runs = [[name for name in run if name in inside] for run in extent.runs]
    return [
        Row(blocks=[parts[name] for name in run], first=run[0] == inside[0], last=run[-1] == inside[-1])
        for run in runs
        if run
    ]


def _events_of(division: Division, route: Route) -> list[int]:
    """Return the calls of blocks that positions pass through."""
    return [
        index
        for index, event in enumerate(route.events)
        if event.part.rpartition(".")[0] == division.container
    ]


def _of_share(event: Event, stream: Stream) -> Event:
    """Return a block's call with this rank's positions of the stream, which it returns first."""
    leaves = list(event.leaves)
    place = next(place for place, leaf in enumerate(leaves) if isinstance(leaf, TensorShape))
    shape = list(leaves[place].shape)
    stream.positions.check(shape[SEQUENCE], stream.further)
    shape[SEQUENCE] //= stream.positions.ranks
    leaves[place] = replace(leaves[place], shape=torch.Size(shape))
    return replace(event, leaves=tuple(leaves))
