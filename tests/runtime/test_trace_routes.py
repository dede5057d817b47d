"""Experts that a loop runs for the tokens that chose them, as a trace takes them: equally many each."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from traced import peaks_of
from traced_models import Subject

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")

_WIDTH, _INNER, _EXPERTS, _LENGTH = 32, 128, 8, 32


class Routed(nn.Module):
    """Looks which experts are hit, and runs each, which is found by its number, for its own tokens."""

    def __init__(self, often: int) -> None:
        super().__init__()
        self.often = often
        self.router = nn.Linear(_WIDTH, _EXPERTS)
        self.experts = nn.ModuleDict(
            {
                f"expert_{place}": nn.Sequential(
                    nn.Linear(_WIDTH, _INNER), nn.GELU(), nn.Linear(_INNER, _WIDTH)
                )
                for place in range(_EXPERTS)
            }
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, out = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
        self.router = self.router.to(torch.float32)
        scores = self.router(tokens.float()).softmax(-1)
        if self.often == 1:
            chosen = scores.argmax(-1, keepdim=True)
            weights = scores.gather(-1, chosen)
        else:
            weights, chosen = scores.topk(self.often)
        mask = functional.one_hot(chosen, _EXPERTS).permute(2, 1, 0)
        for expert in mask.sum((-1, -2)).nonzero():
            place = int(expert)
            slots, rows = torch.where(mask[place])
            own = self.experts[f"expert_{expert.squeeze()}"](tokens[rows]) * weights[rows, slots, None]
            out.index_add_(0, rows, own.to(out.dtype))
        return x + out.view_as(x)


def tokens(samples: int, _length: int | None) -> torch.Tensor:
    return torch.randn(samples, _LENGTH, _WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("often", [1, 2])
def test_experts_of_a_loop_get_what_all_tokens_choose_together(often: int) -> None:
    torch.manual_seed(0)
    peaks = peaks_of(Subject(build=partial(Routed, often), samples=16, inputs=tokens))
    assert peaks.here == pytest.approx(peaks.real, rel=0.02)


def test_it_is_said_that_they_are_chosen_equally_often() -> None:
    source = traced_module(Routed(2), ref="it", sample_inputs=tokens, divides=False)
    model = source.at(None, Precision.FP32, Kernels.EAGER)
    assert any("experts to be chosen equally often" in caveat for caveat in model.caveats)
