"""Which divided stretches a forward runs alike, whatever way it chooses by values.

A graph shows the way that some inputs took. Where the forward may take others, a stretch from a column to
its rows is known to be the same on all of them only if it lies in one module's call, before that call reads
any value, and the call is given tensors alone: nothing that was read elsewhere can reach it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

if TYPE_CHECKING:
    from parastrat.runtime.tensor_parallel.graph import Graph, ModuleCall

_CHOSEN = "the forward chooses its way by values while its output is divided"
_BEFORE = "the forward chooses its way by values before its output is divided"
_GIVEN = "the forward chooses its way by values, and gives {path} more than tensors"


def reads_values(operator: Any, args: tuple[Any, ...]) -> bool:
    """Return whether an operator gives Python numbers of tensors, or sizes that hang on their values.

    Args:
        operator: an overload of torch's, or anything else.
        args: tensors, or a graph's nodes with the ``val`` that torch.export notes.
    """
    tags = getattr(operator, "tags", ())
    if torch.Tag.data_dependent_output in tags or operator is torch.ops.aten.item.default:
        return True
    if torch.Tag.dynamic_output_shape not in tags:
        return False
    # of lookups, what a mask takes has a size that hangs on its values
    return operator is not torch.ops.aten.index.Tensor or any(map(_is_mask, args[1]))


def _is_mask(index: Any) -> bool:
    tensor = index.meta["val"] if isinstance(index, Node) else index
    return tensor is not None and tensor.dtype in (torch.bool, torch.uint8)


def other_ways(graph: Graph, columns: Collection[Node], divided: Collection[Node]) -> dict[str, str]:
    """Return the columns that another way may take elsewhere than to what follows them here, and why.

    Args:
        graph: whose forward may choose by values.
        columns: nodes of the layers that divide.
        divided: all nodes whose output is divided, with the columns.
    """
    if not graph.choices:
        return {}
    places = {node: place for place, node in enumerate(graph.nodes)}
    found: dict[str, str] = {}
    for node in sorted(columns, key=places.__getitem__):
        if reason := _other_way(graph, _stretch(node, divided), places):
            found.setdefault(graph.layers[node], reason)
    return found


def _stretch(column: Node, divided: Collection[Node]) -> list[Node]:
    """Return a column's node, all that reads what is divided of it, and what ends it."""
    found = [column]
    for node in found:
        if node in divided:
            found += [user for user in node.users if user not in found]
    return found


def _other_way(graph: Graph, stretch: list[Node], places: Mapping[Node, int]) -> str:
    call = _around([graph.calls[node] for node in stretch])
    first, last = min(map(places.__getitem__, stretch)), max(map(places.__getitem__, stretch))
    inside = [places[node] for node in graph.choices if graph.calls[node][: len(call)] == call]
    if any(place < first for place in inside):
        return _BEFORE
    if any(place < last for place in inside):
        return _CHOSEN
    if any(places[node] < first for node in graph.choices) and not graph.takes_tensors.get(call[-1], False):
        return _GIVEN.format(path=call[-1][0])
    return ""


def _around(stacks: list[tuple[ModuleCall, ...]]) -> tuple[ModuleCall, ...]:
    """Return the calls that all of these are inside of, from the outermost."""
    shared = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*stacks, strict=False))
    return tuple(level[0] for level in shared)
