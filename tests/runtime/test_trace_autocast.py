"""Traced peaks under autocast, where plans do not shard, beside real steps."""

from __future__ import annotations

import sys
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

_WIDTH, _SAMPLES, _LENGTH = 64, 16, 32


class Adapted(nn.Module):
    """A frozen product and two small ones beside it, behind a norm; a residual stream around them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.frozen = nn.Linear(_WIDTH, _WIDTH).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(_WIDTH, 4, bias=False), nn.Linear(4, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.norm(x)
        return x + functional.gelu(self.frozen(given) + self.up(self.down(given)))


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, _WIDTH), nn.Linear(_WIDTH, 20)
        self.blocks = nn.ModuleList(Adapted() for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def words(samples: int, _length: int | None) -> torch.Tensor:
    return torch.zeros(samples, _LENGTH, dtype=torch.long)


def test_a_peak_under_autocast_is_that_of_its_step() -> None:
    subject = Subject(build=Reading, samples=_SAMPLES, length=_LENGTH, inputs=words)
    peaks = peaks_of(subject, Precision.BF16_MIXED)
    assert peaks.here == pytest.approx(peaks.real, rel=0.005)


def test_only_what_products_read_is_cast() -> None:
    source = traced_module(Reading(), ref="it", sample_inputs=words, divides=False)
    model = source.at(_LENGTH, Precision.BF16_MIXED, Kernels.EAGER)
    cast = {group.trainable: group.cast for block in model.blocks for group in block.parameters}
    table, norm, head = 500 * _WIDTH, 2 * _WIDTH, 20 * (_WIDTH + 1)
    assert cast == {table: False, norm: False, 8 * _WIDTH: True, head: True}
    assert all(block.autocast for block in model.blocks)
    plain = source.at(_LENGTH, Precision.BF16, Kernels.EAGER)
    assert not any(block.autocast for block in plain.blocks)


class Repeating(Reading):
    """Its blocks run three times, as in looped transformers, and the head reads the table's weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(_WIDTH, 500, bias=False)
        self.head.weight = self.table.weight
        self.blocks = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in [*self.blocks] * 3:
            x = x + functional.gelu(block(x))
        return self.head(x[:, :1])


def test_weights_that_are_used_often_are_cast_once() -> None:
    """By the first that multiplies with them: a table that is looked up is not cast."""
    source = traced_module(Repeating(), ref="it", sample_inputs=words, divides=False)
    model = source.at(_LENGTH, Precision.BF16_MIXED, Kernels.EAGER)
    cast = sum(
        block.repeat * group.count for block in model.blocks for group in block.parameters if group.cast
    )
    assert cast == model.parameters
    assert not any(group.cast for group in model.blocks[0].parameters)


class Weighing(Reading):
    """Weights of its blocks take more than what samples leave: their copies end one by one in backward."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            nn.Linear(_WIDTH, 1024),
            nn.GELU(),
            nn.Linear(1024, 512),
            nn.GELU(),
            nn.Linear(512, _WIDTH),
        ]
        self.blocks = nn.ModuleList(nn.Sequential(*layers) for _ in range(1))


@pytest.mark.parametrize("build", [Weighing, Repeating])
def test_copies_of_weights_end_with_what_reads_them(build: type[Reading]) -> None:
    subject = Subject(build=build, samples=2, length=_LENGTH, inputs=words)
    peaks = peaks_of(subject, Precision.BF16_MIXED)
    assert peaks.here == pytest.approx(peaks.real, rel=0.01)


class Narrow(nn.Module):
    """Norms over few features of bf16, as those of queries and keys by head: their statistics weigh."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.head = nn.Embedding(500, _WIDTH), nn.LayerNorm(4), nn.Linear(512, 10)
        self.up = nn.Linear(_WIDTH, 512)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.up(self.table(ids)).unflatten(-1, (-1, 4))).flatten(-2))


def test_statistics_of_norms_are_in_fp32() -> None:
    peaks = peaks_of(Subject(build=Narrow, samples=_SAMPLES, inputs=words), Precision.BF16_MIXED)
    assert peaks.here == pytest.approx(peaks.real, rel=0.005)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(500, _WIDTH), nn.Linear(_WIDTH, 20)
        self.recurrent = nn.LSTM(_WIDTH, _WIDTH, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrent(self.table(ids))[0])


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="this processor computes no LSTM in bf16"
)
def test_recurrent_layers_keep_more_than_bf16_values() -> None:
    peaks = peaks_of(Subject(build=Recurrent, samples=128, inputs=words), Precision.BF16_MIXED)
    assert peaks.here == pytest.approx(peaks.real, rel=0.03)
