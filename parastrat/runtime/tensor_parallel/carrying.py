"""The layout of a small copy carried over to the whole model, which has more blocks and other sizes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.tensor_parallel.layout import Group, Layout, Left, Part, Role, kind_of
from parastrat.runtime.tensor_parallel.styles import feature_dims


def carried(layout: Layout, few: nn.Module, module: nn.Module) -> Layout:
    """Leave out groups that divide what passes from block to block, and do not carry over to all blocks.

    Blocks that the copy lacks would be given that without a role, as where all read the first one's values.
    """
    kept = repeated_blocks(few).names
    stuck = tuple(
        group for group in layout.groups if _spans(group, kept) and not _carries_over(group, module)
    )
    reason = "it divides what passes from block to block"
    return replace(
        layout,
        groups=tuple(group for group in layout.groups if group not in stuck),
        left=(*layout.left, *(Left(kind=group.kind, reason=reason) for group in stuck)),
    )


def _carries_over(group: Group, module: nn.Module) -> bool:
    """Return whether all modules of a group's kinds have a role in the whole model."""
    kinds = {kind_of(name) for name in group.parts}
    known = expanded(Layout(groups=(group,)), module).parts
    return all(name in known for name, _ in module.named_modules() if kind_of(name) in kinds)


def _spans(group: Group, blocks: Sequence[str]) -> bool:
    """Return whether a group does the same in several blocks of a kind; a row of layers may be a chain."""
    roles: dict[str, set[Role]] = defaultdict(set)
    for name, part in group.parts.items():
        roles[kind_of(name)].add(part.role)
    inside = [
        kind_of(block)
        for block in blocks
        if any(f"{name}.".startswith(f"{block}.") for name in group.parts)
    ]
    return len(inside) > len(set(inside)) and all(len(each) == 1 for each in roles.values())


def expanded(layout: Layout, module: nn.Module) -> Layout:
    """Return the layout of the whole model from that of a copy with fewer blocks."""
    places = [name for name, _ in module.named_modules()]
    groups: dict[tuple[str, ...], Group] = {}
    for group in layout.groups:
        depth = group.kind.partition("{")[0].count(".") if "{" in group.kind else None
        for place in places:
            names = _moved(group, place, depth)
            if names and all(name in places for name in names.values()):
                parts = {names[name]: part for name, part in group.parts.items()}
                sizes = {names[name]: held for name, held in group.sizes.items()}
                own = fitted(replace(group, parts=parts, sizes=sizes), module)
                groups.setdefault(tuple(parts), own)
    return replace(layout, groups=tuple(groups.values()))


def fitted(group: Group, module: nn.Module) -> Group:
    """Return the group with stretches of this module's sizes: a copy may have smaller ones."""
    return replace(group, parts={name: _fitting(part, module, name) for name, part in group.parts.items()})


def _fitting(part: Part, module: nn.Module, name: str) -> Part:
    layer: Any = module.get_submodule(name)
    dims = feature_dims(layer)
    if not part.segments or dims is None:
        return part
    features: int = layer.weight.shape[dims[0]]
    whole = sum(part.segments)
    return replace(part, segments=tuple(size * features // whole for size in part.segments))


def _moved(group: Group, place: str, depth: int | None) -> dict[str, str]:
    """Return the names of a group's modules at another place of the same kind; nothing if it is no such."""
    first = next(iter(group.parts))
    home = first if depth is None else ".".join(first.split(".")[:depth])
    if kind_of(place) != kind_of(home):
        return {}
    return {name: place + name[len(home) :] for name in (*group.parts, *group.sizes)}
