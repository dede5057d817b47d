"""A layout made to fit one module and one degree: tied weights alike, sizes that divide, the rest left."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from torch import nn

from parastrat.runtime.tensor_parallel.layout import Group, Layout, Left, Part, Role
from parastrat.runtime.tensor_parallel.styles import divided_dim, feature_dims

_Owner = tuple[str, str]

#: what other modules than linear layers may be
_OF_ANY = (Role.SUMMED, Role.EMBEDDING, Role.NORM, Role.BESIDE)


def settled(layout: Layout, module: nn.Module, degree: int) -> Layout:
    """Return the layout without groups that cannot be divided, each with its reason among those left."""
    kept: list[Group] = []
    left = list(layout.left)
    for group in _with_tied(layout, module).groups:
        reason = _indivisible(group, module, degree)
        if reason:
            left.append(Left(kind=group.kind, reason=reason))
        else:
            kept.append(group)
    while True:
        conflicts = _conflicts(Layout(groups=tuple(kept)), module)
        if not conflicts:
            return replace(layout, groups=tuple(kept), left=tuple(dict.fromkeys(left)))
        left += [
            Left(kind=group.kind, reason=conflicts[id(group)]) for group in kept if id(group) in conflicts
        ]
        kept = [group for group in kept if id(group) not in conflicts]


def _with_tied(layout: Layout, module: nn.Module) -> Layout:
    """Give an embedding and the head that shares its weight the same division, whichever was planned."""
    parts = layout.parts
    groups = list(layout.groups)
    for owners in tied(module):
        planned = next((parts[path] for path, _ in owners if path in parts), None)
        if planned is None:
            continue
        for path, _ in owners:
            target = module.get_submodule(path)
            if path in parts:
                continue
            role = Role.EMBEDDING if isinstance(target, nn.Embedding) else Role.COLUMN_GATHERED
            if planned.role in {Role.EMBEDDING, Role.COLUMN_GATHERED} and (
                role is Role.EMBEDDING or feature_dims(target)
            ):
                groups.append(Group(kind=path, parts={path: Part(role=role)}))
    return replace(layout, groups=tuple(groups))


def tied(module: nn.Module) -> list[list[_Owner]]:
    """Return the owners of every parameter that has several."""
    owners: dict[int, list[_Owner]] = defaultdict(list)
    for path, part in module.named_modules():
        for name, parameter in part.named_parameters(recurse=False):
            owners[id(parameter)].append((path, name))
    return [held for held in owners.values() if len(held) > 1]


def _indivisible(group: Group, module: nn.Module, degree: int) -> str:
    for path, part in group.parts.items():
        target = module.get_submodule(path)
        for name, parameter in target.named_parameters(recurse=False):
            dim = divided_dim(target, name, part)
            if dim is None:
                continue
            sizes = part.segments or (parameter.shape[dim],)
            if sum(sizes) != parameter.shape[dim]:
                return (
                    f"the {len(sizes)} stretches of {path} are not in proportion to those of a small copy"
                )
            for size in sizes:
                if size % degree:
                    return f"{size} features of {path} do not divide by tp {degree}"
        if part.role not in _OF_ANY and not feature_dims(target):
            return f"{path} is a {type(target).__name__}, which cannot be divided"
    return ""


def _conflicts(layout: Layout, module: nn.Module) -> dict[int, str]:
    """Return the groups that divide a tied weight in a way that its other owners do not."""
    home = {path: group for group in layout.groups for path in group.parts}
    found = {}
    for owners in tied(module):
        dims = {
            divided_dim(module.get_submodule(path), name, layout.parts.get(path)) for path, name in owners
        }
        if len(dims) > 1:
            for path, _ in owners:
                if path in home:
                    others = ", ".join(other for other, _ in owners if other != path)
                    found[id(home[path])] = f"{path} shares its weight with {others}, which stays whole"
    return found
