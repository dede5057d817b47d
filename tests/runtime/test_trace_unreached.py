"""Parameters that the forward reads and the loss does not reach: no gradients, and no states."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from parastrat.model import ModelSpec
from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from traced import estimated, peaks_of
from traced_catalogue import real
from traced_models import Subject

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")

_WIDTH = 64
_BLOCK, _BESIDE = _WIDTH * (_WIDTH + 1), 16 * _WIDTH * (_WIDTH + 1)


class Missed(nn.Module):
    """Its last two blocks, and a layer beside them, are run for nothing that the loss reads."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.own = own
        self.blocks = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(6))
        self.beside, self.head = nn.Linear(_WIDTH, 16 * _WIDTH), nn.Linear(_WIDTH, 10)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        states = [x]
        for block in self.blocks:
            states.append(block(states[-1]))
        logits, beside = self.head(states[4]), self.beside(x)
        return {"loss": logits.logsumexp(-1).mean()} if self.own else {"logits": logits, "beside": beside}


def vectors(samples: int, _length: int | None) -> torch.Tensor:
    return torch.zeros(samples, _WIDTH)


def traced(module: nn.Module) -> ModelSpec:
    return traced_module(module, ref="it", sample_inputs=vectors).at(None, Precision.FP32, Kernels.EAGER)


def test_what_a_models_own_loss_does_not_reach_has_no_states() -> None:
    peaks = peaks_of(Subject(build=partial(Missed, own=True), samples=2, inputs=vectors))
    assert peaks.here == pytest.approx(peaks.real, rel=0.01)


@pytest.mark.parametrize("own", [True, False])
def test_only_a_loss_that_the_output_suggests_may_reach_more(own: bool) -> None:
    """Blocks that did not run have what their twins have, but not where no gradient comes to them."""
    model, missed = traced(Missed(own=own)), 2 * _BLOCK + _BESIDE
    assert model.parameters - model.trainable_parameters == (missed if own else 0)
    whose = "the model's loss" if own else "the loss that its output suggests, and count as trained"
    assert f"{missed:,} parameters (blocks.4.weight, ...) get no gradient from {whose}" in model.caveats


def test_of_parameters_that_are_reached_nothing_is_said() -> None:
    model = traced(nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(6))))
    assert not any("gradient" in caveat for caveat in model.caveats)


class Widened(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_WIDTH, 8 * _WIDTH), nn.Linear(8 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Cut(nn.Module):
    """Behind its first half no gradient goes on, as behind an autoencoder's code of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.encoder = nn.ModuleList(Widened() for _ in range(4))
        self.decoder = nn.ModuleList(Widened() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.encoder:
            x = block(x)
        x = self.last(x.mul(255).byte() / 255)
        for block in self.decoder:
            x = block(x)
        return x


def test_blocks_behind_a_cut_keep_what_those_before_it_do_not() -> None:
    subject = Subject(build=Cut, samples=512, inputs=vectors)
    held, _ = real(subject, Precision.FP32)
    assert estimated(subject) == pytest.approx(held, rel=0.01)


class Coded(nn.Module):
    """Returns what it reconstructs, and what its codebook adds to a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(_WIDTH, 16), nn.Linear(16, 8 * _WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = self.encoder(x)
        return self.decoder(code)[:, None, None], (code - code.round().detach()).square().mean()


def test_a_scalar_that_trains_less_than_what_stands_before_it_is_a_part_of_the_loss() -> None:
    model = traced(Coded())
    assert model.trainable_parameters == model.parameters
    assert not any("gradient" in caveat for caveat in model.caveats)
