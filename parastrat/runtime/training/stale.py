"""Optimizers made of parameters that were replaced, caught at their first step: it would change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from parastrat.errors import WrapError
from parastrat.plan import Plan

#: by their identity, those that somebody still holds; mostly none
_replaced: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
_hooks: list[Any] = []


@contextmanager
def replacing(module: nn.Module, plan: Plan) -> Iterator[None]:
    """Remember the parameters of a module that are not its own any more at the end.

    A list of parameters that a script made before outlives them; an optimizer that it makes of the list
    afterwards looks like any other.
    """
    # DDP and stages of a pipeline keep them
    before = list(module.parameters()) if plan.shards_parameters or plan.mesh.tp > 1 else []
    yield
    kept = {id(parameter) for parameter in module.parameters()}
    _replaced.update({id(parameter): parameter for parameter in before if id(parameter) not in kept})
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_check))


def _check(optimizer: Any, _args: Any, _keywords: Any) -> None:
    if not _replaced:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            known = _replaced.get(id(parameter))
            if known is not None and known is parameter:
                raise WrapError(
                    f"this {type(optimizer).__name__} holds a parameter of shape {tuple(known.shape)}, "
                    "which auto_parallelize has replaced: its steps would train nothing",
                    hint="make lists of parameters, and optimizers of them, from the model that it returns",
                )
