"""Sequence parallelism beyond the blocks: from the embedding's sum, and up to the head's input.

Without, the embedding's sum is whole on every rank before the first block divides it, and what lies
between the last block and the head works on whole activations: twice the bytes at both ends.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.layout import Ends, Layout, Role
from parastrat.runtime.tensors.batches import called

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def suggested_ends(module: nn.Module, inputs: Any, layout: Layout) -> Iterator[Ends]:
    """Yield how far the division of positions may go, the furthest first; all remains to be proven.

    Args:
        module: a small copy of the model; its forward is run on another one.
        inputs: its batch.
        layout: what is divided already.
    """
    before, after = around_blocks(copy.deepcopy(module), inputs)
    roles = {name: part.role for name, part in layout.parts.items()}
    embedding = before[0] if [roles.get(name) for name in before] == [Role.EMBEDDING] else ""
    *between, last = after or [""]
    head = ""
    if roles.get(last) is Role.COLUMN_GATHERED and not any(name in roles for name in between):
        head = last
    whole = tuple(between) if head else ()
    if embedding and head:
        yield Ends(embedding=embedding, head=head, between=whole)
    if head:
        yield Ends(head=head, between=whole)
    elif embedding:
        yield Ends(embedding=embedding)


def around_blocks(module: nn.Module, inputs: Any) -> tuple[list[str], list[str]]:
    """Return what has parameters of its own and is called before the first block, and after the last."""
    blocks = repeated_blocks(module)
    inside = tuple(f"{name}." for name in blocks.names)
    order: list[str] = []

    def noted(name: str) -> RemovableHandle:
        return module.get_submodule(name).register_forward_pre_hook(lambda *_: order.append(name))

    for name, part in module.named_modules():
        if name in blocks.names or (not name.startswith(inside) and [*part.parameters(recurse=False)]):
            noted(name)
    with torch.no_grad():
        called(module, inputs)
    places = [index for index, name in enumerate(order) if name in blocks.names]
    before, after = order[: places[0]], order[places[-1] + 1 :]
    # what is called twice cannot be in two formats
    return before, [] if len({*order}) < len(order) else after
