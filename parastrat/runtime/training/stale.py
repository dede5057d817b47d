"""Optimizers caught before a step: of parameters that were replaced, or that they cannot step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from parastrat.errors import WrapError
from parastrat.plan import Plan
from parastrat.runtime.pipeline.mixing import see_step_of_stages
from parastrat.runtime.training.gathered import free_for_step
from parastrat.runtime.training.steps_seen import averaging, see_step

#: by their identity, those that somebody still holds; mostly none
_replaced: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()
_hooks: list[Any] = []


#: that raise on divided parameters, in operators that DTensors of torch 2.13 have not
_WHOLE_ALONE: set[type[Any]] = {torch.optim.Adafactor, torch.optim.Rprop}
_WHOLE_IF_FUSED: set[type[Any]] = {torch.optim.SGD, torch.optim.Adagrad}


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


def _check(optimizer: Any, args: Any, keywords: Any) -> Any:
    if type(optimizer) in _WHOLE_ALONE or (type(optimizer) in _WHOLE_IF_FUSED and _is_fused(optimizer)):
        _check_whole(optimizer)
    free_for_step(parameter for group in optimizer.param_groups for parameter in group["params"])
    for group in optimizer.param_groups if _replaced else ():
        for parameter in group["params"]:
            known = _replaced.get(id(parameter))
            if known is not None and known is parameter:
                raise WrapError(
                    f"this {type(optimizer).__name__} holds a parameter of shape {tuple(known.shape)}, "
                    "which auto_parallelize has replaced: its steps would train nothing",
                    hint="make lists of parameters, and optimizers of them, from the model that it returns",
                )
    see_step_of_stages(optimizer)
    models = see_step(optimizer)
    if not (models and isinstance(optimizer, torch.optim.LBFGS)):
        return None
    if "closure" in keywords:
        return args, keywords | {"closure": averaging(keywords["closure"], models)}
    optimizer_itself, *closures = args  # without one, torch says so
    return (optimizer_itself, *(averaging(each, models) for each in closures)), keywords


def _is_fused(optimizer: Any) -> bool:
    return any(group.get("fused") for group in optimizer.param_groups)


def _check_whole(optimizer: Any) -> None:
    """Refuse divided parameters of an optimizer that steps whole ones alone."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(parameter, DTensor):
                name = f"{type(optimizer).__name__}{' with fused=True' if _is_fused(optimizer) else ''}"
                raise WrapError(
                    f"torch.optim.{name} cannot step divided parameters, and this plan divides them",
                    hint="leave out fused=True"
                    if _is_fused(optimizer)
                    else "use another, such as AdamW, or plan ddp: parastrat recommend --strategy ddp",
                )
