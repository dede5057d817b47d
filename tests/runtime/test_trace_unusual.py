"""Traced peaks of modules whose weights, blocks or forwards are of an unusual kind, beside real steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.checkpoint import checkpoint

from parastrat.model import ModelSpec
from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from runtime.traced_models import really_saved
from traced import peaks_of
from traced_models import Subject

pytestmark = pytest.mark.filterwarnings("ignore:Module is None")

_WIDTH, _SAMPLES, _LENGTH = 64, 16, 32


class Spectral(nn.Module):
    """Complex weights for the lowest frequencies of an image, as Fourier neural operators have them."""

    def __init__(self, channels: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(channels, channels, modes, modes, dtype=torch.cfloat))
        self.beside = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum, low = torch.fft.rfft2(x), self.modes
        mixed = torch.zeros_like(spectrum)
        lowest = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :low, :low], self.weight)
        mixed[:, :, :low, :low] = lowest
        return functional.gelu(torch.fft.irfft2(mixed, s=x.shape[-2:]) + self.beside(x))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Stacked(nn.Module):
    """Blocks that are run under a checkpoint, in one of its two ways, or dropped at random."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        self.reentrant, self.rate = reentrant, 0.0
        self.blocks = nn.ModuleList(Block() for _ in range(5))
        self.head = nn.Linear(_WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            if self.reentrant is not None:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
            elif torch.rand(1).item() >= self.rate:
                x = block(x)
        return self.head(x.mean(1))


class Direct(Stacked):
    """It calls its blocks' forward itself, so that no hook tells where one begins."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block.forward(x)
        return self.head(x.mean(1))


class Reentrant(Stacked):
    """The old checkpoint wants an input with a gradient."""

    def __init__(self) -> None:
        super().__init__(reentrant=True)
        self.first = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.first(x))


class Masking(Block):
    """It has a table of its own, which takes more than its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.ones(512, 512), persistent=False)
        self.register_buffer("first", self.mask[:1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.mask[: x.shape[1], :1]


class Lazy(Block):
    """Its table is made by the first forward, and kept."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            first = torch.arange(512.0).view(1, -1) - torch.arange(512.0).view(-1, 1)
            self.table = first @ first
        return super().forward(x) * self.table[: x.shape[1], :1]


def normed() -> nn.Module:
    """Return layers whose weights are made of others in each forward: memory that no sample asks for."""
    norm: Callable[[nn.Module], nn.Module] = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Linear(_WIDTH, 2048)), nn.LeakyReLU(), norm(nn.Linear(2048, 256)))


def upwards() -> nn.Module:
    """Return a generator of images: its weights shrink where its activations grow, so that few samples hold
    most beside their gradients and many before these are made."""
    layers = [nn.ConvTranspose2d(64, 256, 4, 1, 0), nn.BatchNorm2d(256), nn.ReLU(inplace=True)]
    layers += [nn.ConvTranspose2d(256, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 16, 4, 4, 0), nn.Tanh())


def of_width(*sides: int) -> Callable[[int, int | None], torch.Tensor]:
    return lambda samples, _length: torch.zeros(samples, *sides)


SUBJECTS = {
    "complex weights": Subject(
        build=lambda: nn.Sequential(nn.Conv2d(1, 16, 1), Spectral(16, 8), Spectral(16, 8)),
        samples=2,
        inputs=of_width(1, 16, 16),
    ),
    "normed weights": Subject(build=normed, samples=8, inputs=of_width(_WIDTH)),
    "few samples upwards": Subject(build=upwards, samples=3, inputs=of_width(64, 1, 1)),
    "many samples upwards": Subject(build=upwards, samples=64, inputs=of_width(64, 1, 1)),
    "tables": Subject(
        build=lambda: nn.Sequential(*(Masking() for _ in range(4))),
        samples=_SAMPLES,
        inputs=of_width(_LENGTH, _WIDTH),
    ),
    "checkpoints": Subject(
        build=partial(Stacked, reentrant=False), samples=_SAMPLES, inputs=of_width(128, _WIDTH)
    ),
    "old checkpoints": Subject(build=Reentrant, samples=_SAMPLES, inputs=of_width(128, _WIDTH)),
    "blocks without hooks": Subject(build=Direct, samples=_SAMPLES, inputs=of_width(_LENGTH, _WIDTH)),
    "dropped blocks": Subject(build=Stacked, samples=_SAMPLES, inputs=of_width(_LENGTH, _WIDTH)),
}


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_peak_of_an_unusual_model_is_that_of_its_step(name: str) -> None:
    torch.manual_seed(0)
    peaks = peaks_of(SUBJECTS[name])
    assert peaks.here == pytest.approx(peaks.real, rel=0.02)


@pytest.mark.parametrize("blocks", [4, 8])
def test_tables_that_a_first_forward_makes_are_there_as_buffers_are(blocks: int) -> None:
    """Those of blocks that do not run, too; when the optimizer steps they are still there."""
    subject = Subject(
        build=lambda: nn.Sequential(*(Lazy() for _ in range(blocks))),
        samples=2,
        inputs=of_width(_LENGTH, _WIDTH),
    )
    torch.manual_seed(0)
    peaks = peaks_of(subject)
    assert peaks.here == pytest.approx(peaks.real, rel=0.005)


def test_what_the_last_step_left_ends_with_the_next_one() -> None:
    class Watching(Block):
        """It keeps what it saw last, of which there is more with more samples."""

        seen: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = x * 2
            return super().forward(x)

    model = traced(Watching, of_width(_LENGTH, _WIDTH))
    assert model.buffers == 0


@pytest.mark.parametrize("name", ["checkpoints", "old checkpoints", "dropped blocks"])
def test_what_a_module_makes_again_itself_is_told(name: str) -> None:
    subject = SUBJECTS[name]
    source = traced_module(subject.build(), ref=name, sample_inputs=subject.inputs)
    chain = source.at(None, Precision.FP32, Kernels.EAGER).blocks
    # all of a block; the new checkpoint stops before the last product, whose result nothing keeps
    expected = {"checkpoints": 0.5, "old checkpoints": 1.0, "dropped blocks": 0.0}
    assert {block.remade for block in chain if block.unit} == {expected[name]}
    assert {block.remade for block in chain if not block.unit} == {0.0}


class Packed(nn.Module):
    """Sequences of several lengths, packed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(16, 5)
        self.recurrent = nn.LSTM(8, 16, batch_first=True)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (last, _) = self.recurrent(packed)
        return self.head(last[-1])


def packed_batch(samples: int) -> dict[str, torch.Tensor]:
    whole = torch.zeros(samples, _LENGTH, dtype=torch.long)
    return {"ids": whole, "lengths": torch.full((samples,), _LENGTH)}


def traced(
    build: Callable[[], nn.Module],
    inputs: Callable[[int, int | None], object],
    precision: Precision = Precision.FP32,
) -> ModelSpec:
    with torch.device("meta"):
        module = build()
    source = traced_module(module, ref="it", sample_inputs=inputs)
    return source.at(_LENGTH if source.has_tokens else None, precision, Kernels.EAGER)


def test_packed_sequences_are_taken_to_be_equally_long() -> None:
    model = traced(Packed, lambda samples, _length: packed_batch(samples))
    assert any("packed sequences to be equally long" in caveat for caveat in model.caveats)

    def step(module: nn.Module) -> torch.Tensor:
        return functional.cross_entropy(module(**packed_batch(8)), torch.zeros(8, dtype=torch.long))

    kept = [block.activations.none for block in model.blocks]
    assert sum(8 * saved.replicated + saved.fixed for saved in kept) == pytest.approx(
        really_saved(Packed(), step), rel=0.05
    )


def test_weights_that_keep_their_format_count_by_their_bytes() -> None:
    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            codes = torch.zeros(_WIDTH, _WIDTH, dtype=torch.uint8)
            self.codes = nn.Parameter(codes, requires_grad=False)
            self.scale = nn.Parameter(torch.ones(_WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.codes.to(x.dtype) * self.scale)

    model = traced(Quantized, of_width(_WIDTH))
    (block,) = model.blocks
    frozen = sum(group.frozen for group in block.parameters)
    assert (frozen, model.parameters) == (_WIDTH**2 // 4, _WIDTH**2 + _WIDTH)


def test_weights_of_several_formats_are_told() -> None:
    def mixed() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8).to(torch.float64))

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mixed()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[1](self.layers[0](x).to(self.layers[1].weight.dtype))

    (said,) = [caveat for caveat in traced(Mixed, of_width(8)).caveats if "several formats" in caveat]
    assert "(float32, float64): a plan brings all of them into float32" in said


class Normalised(nn.Module):
    """Subtracts what stays in fp32 from its images: a convolution then reads fp32, which autocast casts."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.gelu(self.first(x - self.mean)))


def test_formats_that_only_autocast_lets_meet_are_traced_under_it() -> None:
    model = traced(Normalised, of_width(3, 16, 16), Precision.BF16_MIXED)
    assert any("only autocast lets meet" in caveat for caveat in model.caveats)
    casts = 2 * model.parameters  # counted with the weights

    def step(module: nn.Module) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            output = module(torch.zeros(8, 3, 16, 16))
        return output.float().mean()

    kept = [block.activations.none for block in model.blocks]
    found = sum(8 * saved.replicated + saved.fixed for saved in kept)
    assert sum(block.parameter_count for block in model.blocks) == model.parameters
    # the batch itself lives as long, though no operator keeps it
    batch = 4 * 8 * 3 * 16 * 16
    assert found - batch == pytest.approx(really_saved(Normalised(), step) - casts, rel=0.02)
    # which is nothing that autocast does in fp32
    assert not any("autocast" in caveat for caveat in traced(Normalised, of_width(3, 16, 16)).caveats)
