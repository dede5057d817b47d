"""Forwards whose sizes hang on lengths, grids and masks that they are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from runtime.models import plan, token_loss
from runtime.ranks import answers, on_ranks
from torch import nn
from torch.nn import functional

import parastrat
from parastrat.errors import ValuesError
from parastrat.model import ModelSpec
from parastrat.runtime.building import Builder, build_module
from parastrat.runtime.pipeline.example import Example
from parastrat.runtime.pipeline.example import traced as followed
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.tracing.samples import SAMPLES
from parastrat.runtime.tracing.trace import traced_module
from parastrat.stack import Kernels
from parastrat.workload import Precision

_WIDTH, _SAMPLES, _POSITIONS, _LONGEST = 8, 4, 6, 5

Kept = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def written(x: torch.Tensor, _lengths: torch.Tensor) -> torch.Tensor:
    """What the others keep, by a number that is written in the code."""
    return x[:, :_LONGEST].contiguous()


def listed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return x[:, : max(lengths.tolist())].contiguous()


def masked(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    return x[:, mask.any(0)]


def filled(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(x.shape[1], dtype=torch.bool)
    mask[: int(lengths.amax())] = True
    return x[:, mask.nonzero()[:, 0]]


def repeated(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(1, dtype=torch.long)
    places = torch.repeat_interleave(ones, lengths.max().reshape(1)).cumsum(0) - 1
    return x[:, places]


def often(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    return torch.cat([x] * int(lengths.amax()), 1)


def computed(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """What a length is hangs on activations, which have no values."""
    lengths = lengths.clone()
    lengths[:1] = (x[0].sum(-1) > 0).sum()
    return x[:, : int(lengths[0])]


class Net(nn.Module):
    """Blocks over the positions that are kept."""

    def __init__(self, kept: Kept = listed) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, _WIDTH)
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.head, self.kept = nn.Linear(_WIDTH, 16), kept

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.kept(self.embed(ids), lengths)
        for layer in self.layers:
            x = x + functional.gelu(layer(x))
        return self.head(x)


def batch(samples: int = _SAMPLES, longest: int = _LONGEST) -> dict[str, torch.Tensor]:
    lengths = torch.full((samples,), longest)
    lengths[1] = 2
    ids = torch.arange(samples * _POSITIONS).reshape(samples, _POSITIONS) % 16
    return {"ids": ids, "lengths": lengths}


def traced(kept: Kept) -> ModelSpec:
    with torch.device("meta"):
        module = Net(kept)
    source = traced_module(module, ref="it", sample_inputs=batch(), divides=False)
    return source.at(None, Precision.FP32, Kernels.EAGER)


@pytest.mark.parametrize("kept", [listed, masked, filled, repeated])
def test_a_trace_takes_the_values_of_sample_inputs_and_says_so(kept: Kept) -> None:
    found, expected = traced(kept), traced(written)
    head, own_head = expected.blocks[-1], found.blocks[-1]
    assert (own_head.name, own_head.activations) == (head.name, head.activations)
    assert any("taken to be those of the sample inputs" in caveat for caveat in found.caveats)
    assert not any("sample inputs" in caveat for caveat in expected.caveats)


def test_placeholders_that_an_operator_refuses_are_not_known() -> None:
    def shared(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return x * (12 // (lengths * 0))[:, None, None]

    kept, expected = traced(shared), traced(lambda x, lengths: x * (12 // lengths)[:, None, None])
    assert kept.blocks[-1].activations == expected.blocks[-1].activations


def test_what_is_written_of_activations_is_not_known() -> None:
    with pytest.raises(ValuesError, match=r"Net\.forward depends on values"):
        traced(computed)


def test_a_scripts_own_tensor_is_written_once() -> None:
    counter = torch.zeros(1, dtype=torch.long)

    def counting(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        counter.add_(1)
        return listed(x, lengths)

    traced(counting)
    # once in each trace
    assert int(counter) == len(SAMPLES)


class Strided(nn.Module):
    """Pads to a multiple of a stride that is a buffer, as codecs of sound do."""

    stride: torch.Tensor
    padding: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 16, 8, stride=4)
        stride = torch.tensor(self.conv.stride[0])
        self.register_buffer("stride", stride, persistent=False)
        self.register_buffer("padding", torch.tensor(self.conv.kernel_size[0]) - stride, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = torch.ceil(x.shape[-1] / self.stride).to(torch.int64) * self.stride - x.shape[-1]
        return self.conv(functional.pad(x, (int(self.padding), int(more))))


class Padded(Strided):
    """The same with the numbers in its code."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(functional.pad(x, (4, 1)))


def of_sound(module: nn.Module) -> ModelSpec:
    def sound(samples: int, _length: int | None) -> torch.Tensor:
        return torch.zeros(samples, 1, 31)

    source = traced_module(module, ref="it", sample_inputs=sound, divides=False)
    return source.at(None, Precision.FP32, Kernels.EAGER)


@pytest.mark.parametrize("build", [Strided, lambda: build_module(Builder(ref="it", build=Strided))])
def test_sizes_may_hang_on_whole_numbers_in_buffers(build: Callable[[], nn.Module]) -> None:
    """Also where they are on the meta device, by what the constructor did."""
    (found,), (expected,) = (of_sound(module).blocks for module in (build(), Padded()))
    assert found.activations.none.replicated == expected.activations.none.replicated


def test_without_what_the_constructor_did_they_are_not_known() -> None:
    with torch.device("meta"):
        module = Strided()
    with pytest.raises(ValuesError, match="depends on values"):
        of_sound(module)


def test_stages_send_what_the_values_make_of_it() -> None:
    setting = Setting(precision=Precision.FP32, autocast=True)
    module = Net().to("meta")
    with followed(module, Example(inputs=batch()), setting) as (_, whole):
        way = whole.route
    assert [event.tensors[0].shape[1] for event in way.events[1:]] == [_LONGEST] * 5


def test_values_that_no_forward_runs_with_are_placeholders() -> None:
    setting = Setting(precision=Precision.FP32, autocast=True)
    given = batch() | {"lengths": torch.zeros(_SAMPLES, dtype=torch.long)}
    with followed(Net(often).to("meta"), Example(inputs=given), setting) as (_, whole):
        way = whole.route
    assert [event.tensors[0].shape[1] for event in way.events] == [_POSITIONS] * 6


def trained(longest: tuple[int, ...]) -> list[float]:
    """The losses of steps, over micro-batches whose longest samples are so long."""
    torch.manual_seed(0)
    model = parastrat.auto_parallelize(
        Net(), plan=plan(pp=2, gradient_accumulation_steps=2, micro_batch_size=2), sample_inputs=batch(2)
    )
    return [float(step(model, each)) for each in longest]


def step(model: nn.Module, longest: int) -> torch.Tensor:
    given = batch(longest=longest)
    return parastrat.forward_backward(model, given, targets(given, longest), loss_fn=token_loss)


def targets(given: dict[str, torch.Tensor], longest: int) -> torch.Tensor:
    return given["ids"][:, :longest].contiguous()


def on_two() -> dict[str, Any]:
    return answers({"same": lambda: trained((_LONGEST,)), "longer": lambda: trained((_LONGEST, 6))})


@pytest.mark.slow
def test_stages_train_as_one_process_and_refuse_other_sizes() -> None:
    torch.manual_seed(0)
    expected = token_loss(Net()(**batch()), targets(batch(), _LONGEST)).item()
    for rank in on_ranks(2, on_two):
        assert rank["same"] == pytest.approx([expected], rel=1e-5)
        assert "returned (2, 6, 8)" in rank["longer"], rank["longer"]
