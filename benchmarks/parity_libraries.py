"""Models of public libraries, which need not be installed, as subjects of the parity table."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import libraries
import torch
from libraries.member import Member
from parity_models import Batch, Subject
from parity_recipes import LARGEST, Recipe, loss
from parity_transformers import said, tried
from torch.utils._pytree import tree_map

STEPS = 3


def names(of: Iterable[str] = ()) -> list[str]:
    """Return the names of the models of some libraries; of all that are installed if none is given."""
    return [name for library in of or libraries.installed() for name in libraries.names(library)]


def is_of_library(name: str) -> bool:
    """Return whether a name is that of a library's model."""
    return name.partition(":")[0] in libraries.LIBRARIES


def recipe_of(name: str) -> Recipe | str:
    """Return how to build and call a model, or why nothing that was tried does.

    A recipe's ``shrink`` is the place of what was taken among the ways to build it.
    """
    reasons: list[str] = []
    for place, member in enumerate(libraries.members(name)):
        try:
            module = member.build()
        except Exception as error:  # noqa: BLE001 - models that nobody chose may raise anything
            reasons.append(said(error))
            continue
        size = sum(parameter.numel() for parameter in module.parameters())
        if size > LARGEST:
            reasons.append(f"has {size:,} parameters")
            continue
        found = tried(module, Recipe(shrink=str(place), inputs=()), functools.partial(_batch, member))
        if isinstance(found, Recipe):
            return found
        reasons.append(found)
    return "; ".join(dict.fromkeys(reasons))


def subject(name: str, recipe: Recipe) -> Subject:
    """Return a model as a subject; building or calling it may raise anything."""
    member = libraries.members(name)[int(recipe.shrink)]
    return Subject(
        name=name,
        build=lambda: member.build().train(not recipe.evaluated),
        batch=functools.partial(_batch, member),
        loss_fn=loss,
        steps=STEPS,
    )


def _batch(member: Member, step: int, samples: int) -> Batch:
    """Return what a step takes: the rows behind those of the steps before."""
    draw = torch.Generator().manual_seed(step)
    behind = step * samples
    through = behind + samples

    def rows(leaf: Any, longer: Any) -> Any:
        # others, such as places of patches, are for all samples
        of_samples = isinstance(leaf, torch.Tensor) and leaf.shape != longer.shape
        return leaf[behind:] if of_samples else leaf

    inputs = tree_map(rows, member.inputs(through), member.inputs(through + 1))
    return inputs, torch.rand(samples, generator=draw) + 0.5
