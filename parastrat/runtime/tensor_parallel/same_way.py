"""Which divided stretches a forward runs alike, whatever way it chooses by values.

A graph shows the way that some inputs took. Where the forward may take others, a stretch from a column to
its rows is known to be the same on all of them only if it lies in one module's call, before that call reads
any value. What was read elsewhere can reach it by what the call is given beside tensors, which is held to
what it was here; not if the call that read it returned tensors alone.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.fx import Node

from parastrat.errors import WrapError
from parastrat.runtime.tensor_parallel.by_values import flags_in
from parastrat.runtime.tensor_parallel.layout import Given, Layout, kind_of

if TYPE_CHECKING:
    from parastrat.runtime.tensor_parallel.graph import Graph, ModuleCall

_CHOSEN = "the forward chooses its way by values while its output is divided"
_BEFORE = "the forward chooses its way by values before its output is divided"
_GIVEN = "the forward chooses its way by values, and gives {path} numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What other ways may do to columns."""

    #: columns that some may take elsewhere than to what follows them here, and why
    elsewhere: Mapping[str, str]
    #: by column: a call in which what follows is the same, if it is given as much
    alike: Mapping[str, frozenset[tuple[str, Given]]]


def ways_of(graph: Graph, columns: Collection[Node], divided: Collection[Node]) -> Ways:
    """Return what other ways of a forward may do to columns.

    Args:
        graph: whose forward may choose by values.
        columns: nodes of the layers that divide.
        divided: all nodes whose output is divided, with the columns.
    """
    elsewhere: dict[str, str] = {}
    alike: dict[str, set[tuple[str, Given]]] = defaultdict(set)
    if not graph.choices:
        return Ways(elsewhere=elsewhere, alike={})
    places = {node: place for place, node in enumerate(graph.nodes)}
    for node in sorted(columns, key=places.__getitem__):
        try:
            required = _required(graph, _stretch(node, divided), places)
        except _OtherWayError as error:
            elsewhere.setdefault(graph.layers[node], str(error))
        else:
            alike[graph.layers[node]].update(required)
    return Ways(elsewhere=elsewhere, alike={path: frozenset(found) for path, found in alike.items()})


class _OtherWayError(Exception):
    """A stretch may go on otherwise."""


def _stretch(column: Node, divided: Collection[Node]) -> list[Node]:
    """Return a column's node, all that reads what is divided of it, and what ends it."""
    found = [column]
    for node in found:
        if node in divided:
            found += [user for user in node.users if user not in found]
    return found


def _required(graph: Graph, stretch: list[Node], places: Mapping[Node, int]) -> list[tuple[str, Given]]:
    """Return the kind of the call around a stretch, and the flags that it must be given; or nothing.

    Raises:
        _OtherWayError: if that does not settle it.
    """
    call = _around([graph.calls[node] for node in stretch])
    within = {each for node in stretch for each in graph.calls[node]}
    choices = [node for node in graph.choices if not _stays_inside(graph, node, within)]
    first, last = min(map(places.__getitem__, stretch)), max(map(places.__getitem__, stretch))
    inside = [places[node] for node in choices if graph.calls[node][: len(call)] == call]
    if any(place < first for place in inside):
        raise _OtherWayError(_BEFORE)
    if any(place < last for place in inside):
        raise _OtherWayError(_CHOSEN)
    if not any(places[node] < first for node in choices):
        return []
    given = graph.given.get(call[-1])
    if given is None:
        raise _OtherWayError(_GIVEN.format(path=call[-1][0]))
    return [(kind_of(call[-1][0]), given)]


def _stays_inside(graph: Graph, choice: Node, within: Collection[ModuleCall]) -> bool:
    """Return whether what a choice reads stays in a call that has no part in a stretch."""
    return any(graph.returned.get(call) == () for call in graph.calls[choice] if call not in within)


def _around(stacks: list[tuple[ModuleCall, ...]]) -> tuple[ModuleCall, ...]:
    """Return the calls that all of these are inside of, from the outermost."""
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in shared)


def hold_to(module: nn.Module, layout: Layout) -> None:
    """Refuse calls of a module's parts that are given other flags than their way was followed with."""
    # layers of a kind have a group each, which say the same of it
    held = {pair for group in layout.groups for pair in group.given.items()}
    if not held:
        return

    def check(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], allowed: Any) -> None:
        found = flags_in(args, kwargs)
        if found not in allowed:
            others = sorted(set(found or ()) - set(allowed[0]))
            told = ", ".join(f"{path} = {flag}" for path, flag in others) or "numbers"
            raise WrapError(
                f"{type(part).__name__} is given other flags than it was followed with ({told}), "
                "and the forward chooses its way by values: tp may not be right with these",
                hint="plan without tp: parastrat recommend --tp 1, such as fsdp2 over all ranks",
            )

    for name, part in module.named_modules():
        own = kind_of(name)
        for allowed in sorted(given for kind, given in held if kind == own):
            part.register_forward_pre_hook(partial(check, allowed=allowed), with_kwargs=True)
