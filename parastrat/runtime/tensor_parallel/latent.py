"""Layers that stay whole, and whose output what is divided reads, as the latents of keys and values.

In multi-head latent attention (arXiv 2405.04434, section 2.1) heads share what comes of one small layer.
Each rank reads all of it for its own heads, so that its gradient there is a share: the region begins with
this layer, whose weights are whole, and their gradients added up over the ranks.
"""

from __future__ import annotations

from collections.abc import Collection

from torch.fx import Node

from parastrat.runtime.tensor_parallel.calls import shape_of
from parastrat.runtime.tensor_parallel.graph import Graph


def origin_of(graph: Graph, activation: Node, columns: Collection[str]) -> str | None:
    """Return the one layer that an activation comes from, beside some columns; None: it is none.

    Between them may lie norms, whose weights' gradients are shares as well.
    """
    found: set[str] = set()
    seen, left = {activation}, [activation]
    while left:
        node = left.pop()
        if node in graph.layers:
            found.add(graph.layers[node])
            continue
        if node in graph.parameters and len(shape_of(node)) > 1:
            return None
        inputs = [each for each in node.all_input_nodes if each in graph.trained and each not in seen]
        seen.update(inputs)
        left += inputs
    homes = {path.rpartition(".")[0] for path in columns}
    (origin,) = found if len(found) == 1 else (None,)
    return origin if origin is not None and origin.rpartition(".")[0] in homes else None
