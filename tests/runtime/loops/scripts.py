"""What scripts do with models: freeze, hook, call twice, differentiate by inputs, teach, play."""

from __future__ import annotations

import os
from typing import Any

import torch
from runtime.loops.setting import WIDTH, Mlp, Setting, recipe, squares
from torch import nn
from torch.nn import functional


def _stepped(
    setting: Setting, model: Any, loss_of: Any, *, steps: int = 3, inputs: Any = None
) -> list[float]:
    """Train on a loss of a model, inputs and aims; of some parameters alone if they are given."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        loss = loss_of(model, *setting.batch(step))
        loss.backward(inputs=inputs)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(setting.mean(loss))
    return losses


@recipe
def thawed_layers(setting: Setting) -> list[float]:
    torch.manual_seed(0)
    module = Mlp()
    module.layers[:2].requires_grad_(requires_grad=False)  # type: ignore[operator]
    model = setting.wrapped(module)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    losses = setting.trained(model, optimizer, steps=2)
    frozen = [each for each in model.parameters() if not each.requires_grad]
    for each in frozen:
        each.requires_grad_(requires_grad=True)
    optimizer.add_param_group({"params": frozen})
    return losses + setting.trained(model, optimizer, steps=3)


@recipe
def frozen_later(setting: Setting) -> list[float]:
    model = setting.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0)
    losses = setting.trained(model, optimizer, steps=2)
    for name, each in model.named_parameters():
        if "layers.0" in name or "layers.1" in name:
            each.requires_grad_(requires_grad=False)
    return losses + setting.trained(model, optimizer, steps=3)


@recipe
def a_hook_in_the_loss(setting: Setting) -> list[float]:
    model, kept = setting.model(), list[torch.Tensor]()
    getattr(model, "module", model).layers[2].register_forward_hook(
        lambda _part, _args, output: kept.append(output)
    )

    def loss(called: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        kept.clear()
        output = called(x)
        return squares(output, y) + 0.1 * kept[0].pow(2).mean()

    return _stepped(setting, model, loss)


@recipe
def gradients_of_some(setting: Setting) -> list[float]:
    model = setting.model()
    some = list(model.parameters())[:4]
    return _stepped(setting, model, lambda called, x, y: squares(called(x), y), inputs=some)


@recipe
def two_tasks(setting: Setting) -> list[float]:
    """Gradients of two losses, one without what goes against the other (PCGrad, arXiv 2001.06782)."""
    model, losses = setting.model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(3):
        x, y = setting.batch(step)
        found = []
        for aim in (y, -y):
            optimizer.zero_grad()
            losses.append(setting.mean(setting.backward(model, x, aim)))
            found.append([each.grad.clone() for each in model.parameters()])
        both = sum((one * other).sum() for one, other in zip(*found, strict=True))
        length = sum(each.square().sum() for each in found[1])
        for parameter, one, other in zip(model.parameters(), *found, strict=True):
            parameter.grad = one - both / length * other if both < 0 else one
        optimizer.step()
    return losses


@recipe
def two_views(setting: Setting) -> list[float]:
    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first, second = model(x), model(x + 0.1)
        return squares(first, y) + squares(first, second)

    return _stepped(setting, setting.model(), loss)


@recipe
def adversarial_inputs(setting: Setting) -> list[float]:
    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(squares(model(x), y), x)
        return squares(model((x + 0.1 * gradient.sign()).detach()), y)

    return _stepped(setting, setting.model(), loss)


@recipe
def gradients_that_are_cached(setting: Setting) -> list[float]:
    """Compute a loss over outputs without their graph first, as large contrastive batches are."""
    model = setting.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        x, y = setting.batch(step)
        with torch.no_grad():
            outputs = model(x)
        outputs = outputs.detach().requires_grad_()
        loss = squares(outputs, y)
        loss.backward()
        (model(x) * outputs.grad).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(setting.mean(loss))
    return losses


@recipe
def a_teacher(setting: Setting) -> list[float]:
    """Learn what a teacher answers, of which other ranks than the first have other weights at first."""
    rank = 0 if setting.plan is None else int(os.environ["RANK"])
    teacher = setting.wrapped(_seeded(3 + rank).eval().requires_grad_(requires_grad=False))
    model = setting.model()

    @torch.no_grad()
    def taught(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return teacher(x)  # type: ignore[no-any-return]

    return setting.trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3), aim=taught)


@recipe
def a_generator_and_its_critic(setting: Setting) -> list[float]:
    maker, critic = setting.wrapped(_seeded(0)), setting.wrapped(_seeded(1))
    making = torch.optim.Adam(maker.parameters(), lr=1e-3)
    judging = torch.optim.Adam(critic.parameters(), lr=1e-3)
    losses = []
    for step in range(3):
        real, noise = setting.batch(step)
        made = maker(noise)
        loss = functional.softplus(-critic(real)).mean() + functional.softplus(critic(made.detach())).mean()
        judging.zero_grad()
        loss.backward()
        judging.step()
        losses.append(setting.mean(loss))
        loss = functional.softplus(-critic(made)).mean()
        making.zero_grad()
        loss.backward()
        making.step()
        losses.append(setting.mean(loss))
    return losses


@recipe
def looking_for_anomalies(setting: Setting) -> list[float]:
    model = setting.model()
    with torch.autograd.detect_anomaly(check_nan=True):
        return setting.trained(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


@recipe
def a_penalty_on_weights(setting: Setting) -> list[float]:
    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        penalty = sum(each.pow(2).sum() for each in model.parameters())
        return squares(model(x), y) + 1e-3 * penalty  # type: ignore[no-any-return]

    return _stepped(setting, setting.model(), loss)


class Encoder(nn.Module):
    """Reads a sample as two tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH // 2, 4, 4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.unflatten(1, (2, WIDTH // 2))
        return self.layers(tokens).flatten(1)  # type: ignore[no-any-return]


@recipe
def torchs_transformer(setting: Setting) -> list[float]:
    """Evaluates by a fast path that reads the layers' weights itself."""
    model = setting.model(Encoder)
    losses = setting.trained(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    model.eval()
    x, y = setting.batch(9)
    with torch.inference_mode():
        output = model(x)
    return [*losses, setting.mean(squares(output, y))]


def _seeded(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Mlp()
