"""What a target weighs is told from gradients of a cross entropy, and of no other loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from parastrat.runtime.training.weighed import Weighed, weight_of

ROWS, CLASSES, IGNORED = 24, 1000, -100

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def drawn(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(ROWS, CLASSES, generator=draw).mul(3).to(dtype).requires_grad_()
    labels = torch.randint(CLASSES, (ROWS,), generator=draw)
    labels[5:9] = IGNORED
    return logits, labels


def told(loss: Loss, dtype: torch.dtype = torch.float32) -> float | None:
    logits, labels = drawn(dtype)
    (gradients,) = torch.autograd.grad(loss(logits, labels), logits)
    return weight_of(logits.detach(), gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_of_a_mean_it_is_the_share_of_one_target(dtype: torch.dtype) -> None:
    assert told(functional.cross_entropy, dtype) == pytest.approx(1 / 20, rel=5e-3)
    # as autocast computes it, scaled for fp16
    scaled = told(lambda logits, labels: 512 * functional.cross_entropy(logits.float(), labels), dtype)
    assert scaled == pytest.approx(512 / 20, rel=5e-3)


def test_of_a_mean_over_places_it_is_the_share_of_a_place() -> None:
    of_places = told(
        lambda logits, labels: functional.cross_entropy(logits, labels, reduction="none").mean()
    )
    assert of_places == pytest.approx(1 / ROWS, rel=1e-5)


OTHERS: dict[str, Loss] = {
    "squared": lambda logits, labels: (logits - labels[:, None]).square().mean(),
    "binary": lambda logits, labels: functional.binary_cross_entropy_with_logits(
        logits, functional.one_hot(labels.clamp(min=0), CLASSES).float()
    ),
    "smoothed": lambda logits, labels: functional.cross_entropy(logits, labels, label_smoothing=0.2),
    "with temperature": lambda logits, labels: functional.cross_entropy(logits / 2, labels),
    "with a penalty": lambda logits, labels: (
        functional.cross_entropy(logits, labels) + 0.1 * logits.logsumexp(-1).square().mean()
    ),
    "of weighted classes": lambda logits, labels: functional.cross_entropy(
        logits, labels, weight=1 + torch.arange(CLASSES) / CLASSES
    ),
    "of no target": lambda logits, labels: functional.cross_entropy(
        logits, torch.full_like(labels, IGNORED), reduction="sum"
    ),
    "infinite": lambda logits, labels: functional.cross_entropy(logits, labels) * torch.inf,
}


@pytest.mark.parametrize("loss", OTHERS.values(), ids=OTHERS)
def test_of_other_losses_it_is_not_known(loss: Loss) -> None:
    assert told(loss) is None


def test_what_is_learnt_does_not_count() -> None:
    logits, labels = torch.zeros(2, 4), torch.tensor([1, 2])
    logits[0, 1] = 30.0
    logits.requires_grad_()
    (gradients,) = torch.autograd.grad(functional.cross_entropy(logits, labels), logits)
    assert weight_of(logits.detach(), gradients) == pytest.approx(1 / 2)


def test_it_is_told_once_of_a_backward() -> None:
    seen, (logits, labels) = Weighed(), drawn()
    folded = logits.view(4, 6, CLASSES)
    seen.note({"hidden": labels, "logits": folded})
    functional.cross_entropy(folded.flatten(0, 1), labels).backward()
    assert seen.taken() == pytest.approx(1 / 20, rel=1e-5)
    assert seen.taken() is None


def test_of_values_for_each_sample_nothing_is_noted() -> None:
    seen, values = Weighed(), torch.ones(4, 1, requires_grad=True)
    seen.note([values, torch.ones(3, requires_grad=True), torch.ones(2, 3)])
    values.sum().backward()
    assert seen.taken() is None


def test_of_a_loss_within_a_compiled_forward_it_is_not_known() -> None:
    head, labels = nn.Linear(8, CLASSES), torch.arange(ROWS)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = head(x)
        return functional.cross_entropy(logits, labels), logits

    seen = Weighed()
    loss, logits = torch.compile(forward, backend="aot_eager")(torch.ones(ROWS, 8))
    seen.note((loss, logits))
    loss.backward()
    assert seen.taken() is None
    assert head.weight.grad is not None
