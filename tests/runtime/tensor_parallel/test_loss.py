"""Cross entropy of logits that stay divided by vocabulary: the same numbers, whatever the loss does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from runtime.models import plan, token_loss, tokens
from runtime.ranks import on_ranks
from runtime.tensor_parallel.models import Tiny, at_once, trained
from runtime.training import FEW, TOLERANCE
from torch.nn import CrossEntropyLoss
from torch.nn.functional import cross_entropy

import parastrat
from parastrat.errors import WrapError
from parastrat.runtime.communication.gloo import mesh_of_dtensors
from parastrat.runtime.logits import cross_entropies_computed, logits_divided
from parastrat.runtime.tensor_parallel.by_vocabulary import by_vocabulary
from parastrat.runtime.wrapping import wrapping_of

pytestmark = pytest.mark.slow

CLASSES = 10
VALUES = torch.randn(2, 6, CLASSES, generator=torch.Generator().manual_seed(0))
TARGETS = torch.randint(CLASSES, (2, 6), generator=torch.Generator().manual_seed(1))
TARGETS[0, :4] = -100

Loss = Callable[[torch.Tensor], torch.Tensor]
#: with how many cross entropies are computed from shares
LOSSES: dict[str, tuple[Loss, int]] = {
    "mean": (lambda x: cross_entropy(x.view(-1, x.size(-1)), TARGETS.view(-1)), 1),
    "sum": (lambda x: cross_entropy(x.float().flatten(0, 1), TARGETS.flatten(), reduction="sum"), 1),
    "none": (
        lambda x: cross_entropy(x.flatten(0, 1), TARGETS.flatten(), reduction="none").square().sum(),
        1,
    ),
    "shifted": (lambda x: CrossEntropyLoss()(x[:, :-1].flatten(0, 1) / 3, TARGETS[:, 1:].flatten()), 1),
    "another ignored": (lambda x: cross_entropy(x[1], TARGETS[1], ignore_index=int(TARGETS[1, 2])), 1),
    "z-loss": (
        lambda x: cross_entropy(x.flatten(0, 1), TARGETS.flatten()) + x.logsumexp(-1).square().mean(),
        1,
    ),
    "smoothed": (lambda x: cross_entropy(x.flatten(0, 1), TARGETS.flatten(), label_smoothing=0.1), 0),
    "classes second": (lambda x: cross_entropy(x.transpose(1, 2), TARGETS), 0),
    "some classes": (lambda x: cross_entropy(x[..., :7].flatten(0, 1), TARGETS.clamp(max=6).flatten()), 0),
    "weighted": (
        lambda x: cross_entropy(x[0], TARGETS[0], weight=torch.arange(1.0, CLASSES + 1)),
        0,
    ),
}


def differences() -> dict[str, tuple[float, float, int]]:
    """How far losses and gradients are from those of whole logits, and what was computed from shares."""
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    found = {}
    for name, (loss, _) in LOSSES.items():
        whole = VALUES.clone().requires_grad_()
        expected = loss(whole)
        expected.backward()
        own = VALUES.chunk(2, -1)[dist.get_rank()].clone().requires_grad_()
        before = cross_entropies_computed()
        with logits_divided():
            got = loss(by_vocabulary(own, mesh))
        got.backward()
        assert own.grad is not None
        assert whole.grad is not None
        apart = (own.grad - whole.grad.chunk(2, -1)[dist.get_rank()]).abs().max().item()
        # of sums, the share: one bit of the last place of 90 is 8e-6
        size = max(1.0, expected.abs().item())
        found[name] = ((got - expected).abs().item() / size, apart, cross_entropies_computed() - before)
    return found


def refused() -> list[str]:
    """What is said of a change in place, and of a target that is no class."""
    mesh = mesh_of_dtensors("cpu", (2,), ("tp",), ("tp",))
    said = []
    for loss in (lambda x: x.mul_(2), lambda x: cross_entropy(x[0], torch.full((6,), CLASSES))):
        with logits_divided():
            share = by_vocabulary(VALUES.chunk(2, -1)[0].clone(), mesh)
        try:
            loss(share)
        except (WrapError, RuntimeError) as error:
            said.append(str(error))
    return said


def plain_output() -> tuple[bool, list[str]]:
    """Outside of ``forward_backward`` logits are whole; and what is said of it."""
    model = parastrat.auto_parallelize(Tiny(), plan=plan(tp=2, loss_parallel=True))
    x, y = tokens(0, 2, vocab=64)
    output = model(x)
    is_plain = type(output) is torch.Tensor and output.shape == (*x.shape, 64)
    parastrat.forward_backward(model, x, y, loss_fn=token_loss)
    return is_plain, wrapping_of(model).calls


def on_two() -> dict[str, Any]:
    found: dict[str, Any] = {"plain output": plain_output()}
    found |= {"differences": differences(), "refused": refused()}
    before = cross_entropies_computed()
    found["uneven"] = trained("tp:uneven", {"tp": 2, "loss_parallel": True})[0]
    found["computed"] = cross_entropies_computed() - before
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return on_ranks(2, on_two)[1]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_are_those_of_whole_logits(name: str, found: dict[str, Any]) -> None:
    loss, gradient, computed = found["differences"][name]
    assert loss <= 1e-6
    assert gradient <= 1e-6
    assert computed == LOSSES[name][1]


def test_what_cannot_be_right_is_refused(found: dict[str, Any]) -> None:
    assert "mul_ would change the head's output in place" in found["refused"][0]
    assert "a target is outside of the 10 classes" in found["refused"][1]


def test_labels_of_uneven_number_give_the_losses_of_one_process(found: dict[str, Any]) -> None:
    expected = at_once("tp:uneven")
    assert max(abs(a - b) for a, b in zip(found["uneven"], expected, strict=True)) <= TOLERANCE
    # four micro-batches a step, and one of the proof
    assert found["computed"] == 4 * FEW + 1


def test_only_forward_backward_divides_logits(found: dict[str, Any]) -> None:
    is_plain, said = found["plain output"]
    assert is_plain
    assert "# forward_backward keeps logits divided up to cross entropy; model(x) gathers them" in said
