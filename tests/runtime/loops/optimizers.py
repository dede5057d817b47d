"""Optimizers, torch's and of others' making, and what loops do with gradients and weights around a step."""

from __future__ import annotations

from typing import Any

import torch
from runtime.loops.setting import Setting, recipe
from torch import nn


def of_matrices(model: Any) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the matrices of the layers, and the rest."""
    named = list(model.named_parameters())
    matrices = [each for name, each in named if "layers" in name and each.ndim == 2]
    return matrices, [each for name, each in named if not ("layers" in name and each.ndim == 2)]


@recipe
def muon_beside_adamw(setting: Setting) -> list[float]:
    model = setting.model()
    matrices, rest = of_matrices(model)
    muon, adamw = torch.optim.Muon(matrices, lr=0.02), torch.optim.AdamW(rest, lr=1e-3)
    return setting.trained(model, muon, after=lambda _: (adamw.step(), adamw.zero_grad()))


class Lamb(torch.optim.Optimizer):
    """Scales each step by the ratio of two norms of a weight."""

    def __init__(self, parameters: Any, lr: float = 1e-2) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["mean"], state["square"] = torch.zeros_like(each), torch.zeros_like(each)
                state["mean"].lerp_(each.grad, 0.1)
                state["square"].lerp_(each.grad.square(), 0.01)
                update = state["mean"] / (state["square"].sqrt() + 1e-6)
                ratio = each.norm() / update.norm()
                each.sub_(update * torch.where(ratio > 0, ratio, torch.ones_like(ratio)) * group["lr"])


@recipe
def a_ratio_of_norms(setting: Setting) -> list[float]:
    model = setting.model()
    return setting.trained(model, Lamb(model.parameters()))


@recipe
def line_search(setting: Setting) -> list[float]:
    model = setting.model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    losses = []
    for step in range(3):
        x, y = setting.batch(step)

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            return setting.backward(model, x, y)

        losses.append(setting.mean(torch.as_tensor(optimizer.step(closure))))
    return losses


@recipe
def sharpness_aware(setting: Setting) -> list[float]:
    """Take the gradient where the loss is worst nearby, by the norm of all gradients."""
    model = setting.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step in range(3):
        x, y = setting.batch(step)
        losses.append(setting.mean(setting.backward(model, x, y)))
        with torch.no_grad():
            trained = [each for each in model.parameters() if each.grad is not None]
            norm = torch.stack([each.grad.norm() for each in trained]).norm()
            moves = [each.grad * (0.05 / norm) for each in trained]
            for each, move in zip(trained, moves, strict=True):
                each.add_(move)
        optimizer.zero_grad()
        losses.append(setting.mean(setting.backward(model, x, y)))
        with torch.no_grad():
            for each, move in zip(trained, moves, strict=True):
                each.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
    return losses


@recipe
def rates_by_layer(setting: Setting) -> list[float]:
    model = setting.model()
    named = list(model.named_parameters())
    groups = [
        {"params": [each for name, each in named if f"layers.{layer}." in name], "lr": 1e-2 * 0.5**layer}
        for layer in range(4)
    ]
    rest = {"params": [each for name, each in named if "layers." not in name]}
    return setting.trained(model, torch.optim.AdamW([*groups, rest], lr=1e-3))


@recipe
def one_cycle_and_clipping(setting: Setting) -> list[float]:
    model = setting.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=10)

    def clip() -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    return setting.trained(model, optimizer, before=clip, after=lambda _: schedule.step())


@recipe
def centred_gradients(setting: Setting) -> list[float]:
    model = setting.model()

    def centre() -> None:
        for each in model.parameters():
            if each.grad is not None and each.ndim > 1:
                each.grad.sub_(each.grad.mean(dim=1, keepdim=True))

    return setting.trained(model, torch.optim.SGD(model.parameters(), lr=0.1), before=centre)


@recipe
def clipped_by_unit(setting: Setting) -> list[float]:
    """Gradients at most a share of their rows' weights (arXiv 2102.06171)."""
    model = setting.model()

    def clip() -> None:
        for each in [held for held in model.parameters() if held.ndim > 1]:
            most = 0.01 * each.detach().norm(dim=1, keepdim=True).clamp(min=1e-3)
            length = each.grad.norm(dim=1, keepdim=True)
            clipped = each.grad * (most / length.clamp(min=1e-6))
            each.grad.copy_(torch.where(length > most, clipped, each.grad))

    return setting.trained(model, torch.optim.SGD(model.parameters(), lr=0.05), before=clip)


@recipe
def rows_of_one_length(setting: Setting) -> list[float]:
    model = setting.model()

    def normalise(_: int) -> None:
        with torch.no_grad():
            for each in model.parameters():
                if each.ndim == 2:
                    each.div_(each.norm(dim=1, keepdim=True))

    return setting.trained(model, torch.optim.SGD(model.parameters(), lr=0.1), after=normalise)


@recipe
def clamped_weights(setting: Setting) -> list[float]:
    model = setting.model()

    def clamp(_: int) -> None:
        for each in model.parameters():
            each.data.clamp_(-0.1, 0.1)

    return setting.trained(model, torch.optim.RMSprop(model.parameters(), 1e-2), after=clamp)


@recipe
def steps_by_hand(setting: Setting) -> list[float]:
    """Step along what ``torch.autograd.grad`` returns."""
    model = setting.model()
    losses = []
    for step in range(3):
        x, y = setting.batch(step)
        loss = ((model(x) - y) ** 2).mean()
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for each, gradient in zip(model.parameters(), gradients, strict=True):
                each.sub_(gradient, alpha=0.1)
        losses.append(setting.mean(loss))
    return losses
