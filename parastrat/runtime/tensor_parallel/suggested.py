"""What tensor parallelism would divide of a module, read from its structure; nothing of it is proven."""

from __future__ import annotations

from functools import partial
from math import gcd
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.carrying import carried, expanded
from parastrat.runtime.tensor_parallel.choice import beside, covered, gathered, planned
from parastrat.runtime.tensor_parallel.copies import skeleton
from parastrat.runtime.tensor_parallel.derived import derived_layout
from parastrat.runtime.tensor_parallel.dropout import drops
from parastrat.runtime.tensor_parallel.layout import Group, Layout, Left, Role
from parastrat.runtime.tensor_parallel.sequence import NoStreamError, home_of, streamed
from parastrat.runtime.tensor_parallel.settle import settled
from parastrat.runtime.tensor_parallel.styles import embedding_rows, feature_dims
from parastrat.runtime.tensor_parallel.tags import NotFollowedError

#: what divides at all divides by so many
_LEAST = 2


def suggested_layout(module: nn.Module, inputs: Any) -> Layout:
    """Return the layout that ``auto_parallelize`` would try to prove; without groups if there is none.

    What is tried comes in the order of ``layout_on``.

    Args:
        module: on any device; it stays as it is.
        inputs: one micro-batch as the forward takes it, on any device.
    """
    layout = Layout(groups=())
    for suggest in (planned, partial(_derived, inputs=inputs), gathered):
        if covered(module, layout.groups):
            break
        found = suggest(module)
        groups = (*layout.groups, *beside(layout.groups, found.groups))
        layout = settled(Layout(groups=groups, left=(*layout.left, *found.left)), module, _LEAST)
    blocks = repeated_blocks(module).names
    if drops(module) or any(_attends(group, blocks) for group in layout.groups):
        return layout
    try:
        return streamed(module, layout)
    except NoStreamError:
        return layout


def divisible(module: nn.Module, layout: Layout, heads: int) -> int | None:
    """Return what tp must divide: features of columns and rows, and heads between them; None: nothing."""
    sizes: list[int] = []
    for name, part in layout.parts.items():
        dims = feature_dims(module.get_submodule(name))
        if dims is not None and part.role in (Role.COLUMN, Role.ROW):
            weight: Any = module.get_submodule(name).weight
            sizes += part.segments or [weight.shape[dims[part.role is Role.ROW]]]
    return gcd(heads, *sizes) if sizes else None


def vocabulary_rows(module: nn.Module, layout: Layout) -> int | None:
    """Return the rows of the table that is divided."""
    tables = (name for name, part in layout.parts.items() if part.role is Role.EMBEDDING)
    return next((embedding_rows(module.get_submodule(name)) for name in tables), None)


def _attends(group: Group, blocks: tuple[str, ...]) -> bool:
    """Return whether a block's own code may put heads together, where it would see a share of positions.

    Positions are gathered at the module that holds a group; of a block itself, at each of its columns.
    """
    columns = [part for part in group.parts.values() if part.role is Role.COLUMN]
    several = len(columns) > 1 or bool(group.sizes) or any(part.segments for part in columns)
    return several and home_of(group.places) in blocks


def _derived(module: nn.Module, inputs: Any) -> Layout:
    batch = tree_map(_on_meta, inputs)
    few = skeleton(module)
    try:
        layout = derived_layout(few, batch, _LEAST)
    except NotFollowedError:
        few = skeleton(module, in_place=True)
        try:
            layout = derived_layout(few, batch, _LEAST)
        except NotFollowedError as error:
            return Layout(groups=(), left=(Left(kind="the rest", reason=str(error)),))
    if repeated_blocks(few).count == repeated_blocks(module).count:
        return layout
    return expanded(carried(layout, few, module), module)


def _on_meta(leaf: Any) -> Any:
    return leaf.to("meta") if isinstance(leaf, torch.Tensor) else leaf
