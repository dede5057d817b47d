"""Gradients of gradients under tensor parallelism: right as on one device, or refused in one message."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import Block, Gpt, plan, token_loss, tokens
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.distributed.tensor import DTensor
from torch.func import functional_call
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import parastrat

pytestmark = pytest.mark.slow

Loss = Callable[..., torch.Tensor]


class Blocks(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Block(), Block())


class Attention(nn.Module):
    """Queries, keys and values of one product, whose numbers of heads follow from what a rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (-1, 4)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Attending(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(Attention(), Block(), Attention(), Block())


class Whole(nn.Module):
    """Evaluation compares all features between its products, so that these are DTensors."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.up(x)
        return x + self.down(wide.relu() if self.training else wide.softmax(-1))


def numbers(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, 4, 8, generator=torch.Generator().manual_seed(step))
    return drawn[0], drawn[1]


def sequences(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(step))
    return drawn[0], drawn[1]


def words(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tokens(step, 4)


#: models, their batches, and losses
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], Loss]] = {
    "blocks": (Blocks, numbers, functional.mse_loss),
    "attending": (Attending, sequences, functional.mse_loss),
    "gpt": (partial(Gpt, width=16, heads=2), words, token_loss),
    "whole": (Whole, numbers, functional.mse_loss),
}
PLANS = {
    "tp": plan(tp=2, micro_batch_size=4),
    "tp+sp": plan(tp=2, micro_batch_size=4, sequence_parallel=True),
}


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def adapted(model: nn.Module, batch: Callable[[int], Any], loss_fn: Loss) -> None:
    """Weights are trained to be a step from others' (MAML, arXiv 1703.03400)."""
    weights = dict(model.named_parameters())
    (x, y), (others, theirs) = batch(0), batch(1)
    inner = loss_fn(functional_call(model, weights, (x,)), y)
    found = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    stepped = {name: weight - 0.5 * own for (name, weight), own in zip(weights.items(), found, strict=True)}
    loss_fn(functional_call(model, stepped, (others,)), theirs).backward()


def steep(model: nn.Module, batch: Callable[[int], Any], loss_fn: Loss) -> None:
    """A penalty on the gradients of weights."""
    x, y = batch(0)
    loss = loss_fn(model(x), y)
    found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    (loss + sum(whole(own.square().sum()) for own in found)).backward()


def bent(model: nn.Module, batch: Callable[[int], Any], loss_fn: Loss) -> None:
    """A product with the Hessian: backward through a backward that filled ``grad``."""
    x, y = batch(0)
    loss_fn(model(x), y).backward(create_graph=True)
    slopes = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for parameter in model.parameters():
        parameter.grad = None
    sum(whole((slope * slope.detach()).sum()) for slope in slopes).backward()  # type: ignore[union-attr]


LOOPS = {each.__name__: each for each in (adapted, steep, bent)}


def gradients(
    model: nn.Module,
    loop: Callable[..., None],
    batch: Callable[[int], Any],
    loss_fn: Loss,
) -> dict[str, torch.Tensor]:
    # the fused kernels of attention cannot be differentiated twice on one device either
    with sdpa_kernel(SDPBackend.MATH):
        loop(model, batch, loss_fn)
    return {name: whole(each.grad) for name, each in model.named_parameters() if each.grad is not None}


def differences(model: str, name: str) -> dict[str, float | str]:
    """By how much each loop's gradients differ from one device's, of the greatest of each parameter."""
    build, batch, loss_fn = MODELS[model]
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    wrapped = parastrat.auto_parallelize(build(), plan=PLANS[name], sample_inputs=batch(0)[0])

    def apart(loop: str) -> float:
        for each in (plain, wrapped):
            each.zero_grad()
        expected, found = (gradients(each, LOOPS[loop], batch, loss_fn) for each in (plain, wrapped))
        assert found.keys() == expected.keys()
        return max(
            float((found[each] - own).abs().max() / own.abs().max().clamp(min=1e-6))
            for each, own in expected.items()
        )

    return answers({loop: partial(apart, loop) for loop in LOOPS})


def everything() -> dict[str, Any]:
    return {
        f"{model} {name} {loop}": said
        for model in MODELS
        for name in PLANS
        for loop, said in differences(model, name).items()
    }


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return on_ranks(2, everything)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("model", ["blocks", "attending"])
def test_they_are_those_of_one_device(
    ranks: list[dict[str, Any]], model: str, name: str, loop: str
) -> None:
    for found in ranks:
        assert found[f"{model} {name} {loop}"] == pytest.approx(0, abs=1e-4), found


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("model", ["gpt", "whole"])
def test_where_dtensors_know_the_whole_they_are_refused(
    ranks: list[dict[str, Any]], model: str, name: str, loop: str
) -> None:
    for found in ranks:
        said = found[f"{model} {name} {loop}"]
        if model == "gpt" and isinstance(said, float):  # what torch cannot divide so stays whole
            assert said < 1e-4
        else:
            assert "torch's DTensors leave their own out" in said
