"""Copies and averages of weights, and states that are kept and brought back."""

from __future__ import annotations

import copy
from typing import Any

import torch
from runtime.loops.setting import Setting, recipe, squares
from torch.optim.swa_utils import AveragedModel


def _adamw(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


@recipe
def averaged_model(setting: Setting) -> list[float]:
    model = setting.model()
    average = AveragedModel(model)
    losses = setting.trained(model, _adamw(model), after=lambda _: average.update_parameters(model))
    return [*losses, setting.loss_of(average)]


@recipe
def average_by_state(setting: Setting) -> list[float]:
    """As timm's: a copy whose state follows the model's."""
    model = setting.model()
    average = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(_: int) -> None:
        for mean, value in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
            mean.lerp_(value, 0.1)

    losses = setting.trained(model, _adamw(model), after=update)
    return [*losses, setting.loss_of(average)]


@recipe
def shadows_of_parameters(setting: Setting) -> list[float]:
    """As diffusers': clones that are put into the model to evaluate, and taken out again."""
    model = setting.model()
    shadows = [each.detach().clone() for each in model.parameters()]

    @torch.no_grad()
    def update(_: int) -> None:
        for shadow, each in zip(shadows, model.parameters(), strict=True):
            shadow.sub_(0.1 * (shadow - each))

    losses = setting.trained(model, _adamw(model), after=update)
    kept = [each.detach().cpu().clone() for each in model.parameters()]
    for state in (shadows, kept):
        for values, each in zip(state, model.parameters(), strict=True):
            each.data.copy_(values.to(each.device).data)
        losses.append(setting.loss_of(model))
    return losses


@recipe
def back_to_the_best(setting: Setting) -> list[float]:
    model = setting.model()
    optimizer = _adamw(model)
    losses = setting.trained(model, optimizer, steps=2)
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    losses += setting.trained(model, optimizer, steps=2)
    model.load_state_dict(kept[0])
    optimizer.load_state_dict(kept[1])
    return losses + setting.trained(model, optimizer, steps=2)


@recipe
def mean_teacher(setting: Setting) -> list[float]:
    model = setting.model()
    teacher = copy.deepcopy(model).requires_grad_(False)

    @torch.no_grad()
    def halfway(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y + teacher(x)) / 2  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow(_: int) -> None:
        for mean, each in zip(teacher.parameters(), model.parameters(), strict=True):
            mean.mul_(0.9).add_(each, alpha=0.1)

    return setting.trained(model, _adamw(model), aim=halfway, after=follow)


@recipe
def slow_weights(setting: Setting) -> list[float]:
    """Look ahead with fast weights, and follow half of the way every other step."""
    model = setting.model()
    slow = [each.detach().clone() for each in model.parameters()]

    @torch.no_grad()
    def follow(step: int) -> None:
        if step % 2:
            for mean, each in zip(slow, model.parameters(), strict=True):
                mean.lerp_(each, 0.5)
                each.copy_(mean)

    return setting.trained(model, _adamw(model), after=follow)


@recipe
def copies_that_are_trained(setting: Setting) -> list[float]:
    """Train a copy for some steps and move the model towards it, as first-order meta-learning does."""
    model = setting.model()
    losses = []
    for _ in range(2):
        fast = copy.deepcopy(model)
        losses += setting.trained(fast, torch.optim.SGD(fast.parameters(), lr=0.05), steps=2)
        with torch.no_grad():
            for each, other in zip(model.parameters(), fast.parameters(), strict=True):
                each.add_(other - each, alpha=0.5)
    return [*losses, setting.loss_of(model)]


@recipe
def a_copy_made_too_early(setting: Setting) -> list[float]:
    """Average into a copy of what was given, whose weights are whole."""
    torch.manual_seed(0)
    whole = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))
    average = copy.deepcopy(whole).requires_grad_(False)
    model = setting.wrapped(whole)
    losses = setting.trained(model, _adamw(model), steps=2)
    with torch.no_grad():
        for mean, each in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(each, 0.1)
        x, y = setting.batch(9)
        return [*losses, setting.mean(squares(average(x), y))]
