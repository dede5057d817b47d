"""Steps of optimizers of gradients that nobody reduced, and line searches of each rank by itself."""

from __future__ import annotations

import warnings
import zlib
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from parastrat.errors import MismatchError, WrapError
from parastrat.runtime.communication.compared import differing, is_compared
from parastrat.runtime.training.replicas import living
from parastrat.runtime.training.settings import count_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from parastrat.runtime.training.replicas import Replicas

#: wrapped models whose parameters an optimizer steps
_models: WeakKeyDictionary[Any, WeakSet[Replicas]] = WeakKeyDictionary()
#: by model, its forwards up to an optimizer's last step, and what else was heard of the whole model
_calls: WeakKeyDictionary[Any, WeakKeyDictionary[Replicas, tuple[int, int]]] = WeakKeyDictionary()


def see_step(optimizer: Any) -> list[Replicas]:
    """See to a step that begins; return the wrapped models whose parameters it is of.

    Raises:
        MismatchError: it would step what each rank has another gradient of.
        WrapError: it steps parameters that a wrapped model did not have.
    """
    if not living or _is_inside(optimizer):
        return []
    count = count_step(optimizer)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if is_compared(count):  # groups may be added later
        names = {model: model.held() for model in living}
        found = [model for model, own in names.items() if any(id(each) in own for each in parameters)]
        _models[optimizer] = WeakSet(found)
        known = {each for own in names.values() for each in own}
        others = [each for each in parameters if id(each) not in known and not isinstance(each, DTensor)]
        _refuse_added(others, names)
        for model in found if others else ():
            model.beside[optimizer] = zlib.crc32(repr([tuple(each.shape) for each in others]).encode())
        _compare_others(others, found)
    models = list(_models.get(optimizer, ()))
    for model in models:
        earlier = _calls.setdefault(optimizer, WeakKeyDictionary())
        forwards, before = earlier.get(model, (0, 0))
        # of gradients that a script keeps to each rank it knows
        heard = model.backwards + model.kept
        earlier[model] = model.forwards, heard
        if heard == before:
            _compare_unreduced(model, parameters)
            if model.forwards > forwards:
                _tell_of_no_gradient(model, parameters)
    return models


def _is_inside(optimizer: Any) -> bool:
    """Return whether another optimizer steps by this one, with what is its own on each rank (ZeRO's)."""
    return any(held is optimizer for outer in list(_models) for held in vars(outer).values())


def _refuse_added(others: list[torch.Tensor], models: Iterable[Replicas]) -> None:
    """Refuse parameters that were put into a wrapped model: it was divided, or is reduced, without them."""
    for model in models:
        if name := model.added(others):
            raise WrapError(
                f"{name} was put into the model behind auto_parallelize: its gradient is that of each rank "
                "by itself",
                hint="add adapters, heads and layers before: "
                "auto_parallelize(get_peft_model(model, config))",
            )


def _compare_others(others: list[torch.Tensor], models: list[Replicas]) -> None:
    """Refuse parameters of no wrapped model that each rank trains by itself; unlike ones are meant so."""
    # heard behind a backward: ranks that have none ask for nothing here
    if not models or not models[0].is_beside_others:
        return
    named = [(f"a parameter of shape {tuple(each.shape)}", each.grad) for each in others]
    if name := differing(named, models[0].device, models[0].group):
        raise MismatchError(
            f"{name} beside those of a wrapped model has another gradient on each rank: nobody reduces it, "
            "and the ranks would train apart",
            hint="make it a part of the module that auto_parallelize wraps, or average its gradient over "
            "ranks before optimizer.step(); what is to be each rank's own takes an optimizer of its own",
        )


def _compare_unreduced(model: Replicas, parameters: list[torch.Tensor]) -> None:
    """Refuse gradients of copies that no backward of the whole model reduced."""
    if not model.holds_copies:
        return
    if any(parameter.grad is not None for parameter in parameters):
        model.steps_without += 1
        if is_compared(model.steps_without):
            model.compare_gradients()


def _tell_of_no_gradient(model: Replicas, parameters: list[torch.Tensor]) -> None:
    """Tell of a step that has no gradient, though the model ran for one and FSDP2 heard of no backward."""
    if model.is_gathered and all(parameter.grad is None for parameter in parameters):
        warnings.warn(
            "optimizer.step() has no gradient, though the model ran with gradients: FSDP2 computes with "
            "what it gathers, so that loss.backward(inputs=parameters) reaches none of them; call "
            "loss.backward(), and let what is not to be trained have requires_grad_(False)",
            stacklevel=4,
        )


def averaging(closure: Callable[[], Any], models: list[Replicas]) -> Callable[[], Any]:
    """Return a closure whose loss is the mean over all ranks: by it LBFGS decides how far it goes."""

    def averaged() -> Any:
        loss = torch.as_tensor(closure()).detach().clone()
        message = loss.to(models[0].device, torch.float64) / dist.get_world_size(models[0].group)
        dist.all_reduce(message, group=models[0].group)
        return message.to(loss)

    return averaged
