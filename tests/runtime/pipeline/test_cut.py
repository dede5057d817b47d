"""Where modules are cut, and the proof that stages compute what the whole computes."""

from __future__ import annotations

import pytest
import torch
from runtime.models import Gpt, plan
from torch import nn

from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule
from parastrat.runtime.pipeline.cut import owners_of, spans_of
from parastrat.runtime.pipeline.example import Example, traced
from parastrat.runtime.pipeline.following import followed, route_of
from parastrat.runtime.pipeline.proof import prove
from parastrat.runtime.pipeline.route import Route
from parastrat.runtime.pipeline.setting import Setting
from parastrat.runtime.tensors.slots import slots_of
from parastrat.schedules import rank_of_stage, stages_of_rank
from parastrat.workload import Precision

FP32 = Setting(precision=Precision.FP32, autocast=True)
TOKENS = torch.zeros(2, 16, dtype=torch.long)


def route(module: nn.Module) -> Route:
    return route_of(module, TOKENS, FP32)


def firsts(module: nn.Module, stages: int) -> list[str]:
    """The first part of each stage."""
    way = route(module)
    return [way.events[span.begin].part for span in spans_of(module, way, stages)]


def test_stages_are_cut_by_flops_between_parts() -> None:
    assert firsts(Gpt(layers=4), 2) == ["embed", "layers.2"]
    # what computes nothing is with what reads it
    assert firsts(Gpt(layers=2), 4) == ["embed", "positions", "layers.1", "norm"]


class TextAndImages(nn.Module):
    """Batches of text call the small stack alone, in which no two blocks are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.images = nn.ModuleList(nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3))
        self.text = nn.Module()
        self.text.embed = nn.Embedding(32, 8)
        self.text.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, inner), nn.ReLU(), nn.Linear(inner, 8)) for inner in (16, 24)
        )
        self.text.forward = self._text  # type: ignore[method-assign]

    def _text(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.text.embed(tokens)
        for layer in self.text.layers:
            x = x + layer(x)
        return x

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.text(tokens)
        return out


def test_stages_are_cut_in_small_stacks_of_unequal_blocks() -> None:
    assert firsts(TextAndImages(), 2) == ["text.embed", "text.layers.1"]


def test_sizes_computed_by_tensors_are_those_that_they_are() -> None:
    class Chunks(Gpt):
        """Counts chunks with torch, as Longformer does."""

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            chunks = torch.div(tokens.shape[1], 4, rounding_mode="trunc")
            rows = tokens.new_zeros(tokens.shape[0], chunks + 1, 4)
            return super().forward(tokens + rows[:, 1:].reshape(tokens.shape))

    assert firsts(Chunks(layers=4), 2) == ["embed", "layers.2"]


def test_more_stages_than_parts_name_the_most() -> None:
    with pytest.raises(WrapError, match="into 6 stages at most; the plan has 7") as caught:
        firsts(Gpt(layers=2), 7)
    assert caught.value.hint == "plan --pp 6"


def test_a_tied_weight_belongs_to_both_ends() -> None:
    model = Gpt(layers=4)
    way = route(model)
    owners = owners_of(way, spans_of(model, way, 2), slots_of(model))
    assert owners["embed.weight"] == (0, 1)
    assert owners["layers.1.up.weight"] == (0,)
    assert owners["norm.weight"] == (1,)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_the_proof_sees_a_weight_in_the_wrong_stage(stages: int) -> None:
    model = Gpt(layers=4)
    way = route(model)
    spans = spans_of(model, way, stages)
    owners = owners_of(way, spans, slots_of(model))
    with followed(model, TOKENS, FP32) as whole:
        prove(whole, spans, owners)
        with pytest.raises(WrapError, match="do not compute what it computes as a whole"):
            prove(whole, spans, owners | {"layers.3.up.bias": (0,)})
        with pytest.raises(WrapError, match="do not compute"):
            prove(whole, spans, owners | {"embed.weight": (0,)})


class Following(nn.Module):
    """Keeps a mean of what its blocks compute, and counts its calls."""

    class Block(nn.Module):
        """May keep the mean of its own."""

        def __init__(self, *, keeps: bool) -> None:
            super().__init__()
            self.layer, self.keeps = nn.Linear(16, 16), keeps
            self.register_buffer("mean", torch.zeros(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.keeps:
                self.mean.lerp_(x.detach().mean(0), 0.1)
            return self.layer(x)

    def __init__(self, *, between: bool) -> None:
        super().__init__()
        self.between = between
        self.blocks = nn.ModuleList(self.Block(keeps=not between) for _ in range(4))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = tokens.float()
        for block in self.blocks:
            x = block(x)
            if self.between:
                self.mean.lerp_(x.detach().mean(0), 0.1)
        return x


def test_buffers_that_no_stage_could_keep_are_refused() -> None:
    with pytest.raises(WrapError, match="changes the buffer mean between its blocks"):
        route(Following(between=True))
    assert len(route(Following(between=False)).events) == 4


class Collected(nn.Module):
    """Adds up what its blocks leave behind as attributes."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.extra = self.linear(x)
            return x + self.norm(self.extra)

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(61, 8)
        self.layers = nn.ModuleList(self.Block() for _ in range(3))
        self.head = nn.Linear(8, 61)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x + sum(layer.extra for layer in self.layers))


def test_what_blocks_leave_behind_is_not_cut_off() -> None:
    assert firsts(Collected(), 2) == ["embed", "layers.0"]
    with pytest.raises(WrapError, match=r"what layers\.0 computes inside is used by later blocks"):
        firsts(Collected(), 3)


class Distinct(Gpt):
    """How many tokens pass hangs on their values."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens.unique()[None])


def test_a_forward_that_depends_on_values_is_not_followed() -> None:
    tracing = traced(Distinct().to("meta"), Example(inputs=TOKENS), FP32)
    told = r"cannot be followed: Distinct\.forward depends on values"
    with pytest.raises(WrapError, match=told) as caught, tracing:
        pass
    assert "plan without pp" in caught.value.hint


def test_a_forward_is_followed_at_the_length_that_is_known() -> None:
    module = Gpt(layers=2).to("meta")
    # of longer ones than it has positions a guess is followed
    for length, taken in ((None, 16), (8, 8), (48, 16)):
        with traced(module, Example(sequence_length=length), FP32) as (batch, whole):
            assert batch.shape == (2, taken)
            assert whole.route.events[0].tensors[0].shape[1] == taken


def test_places_of_stages() -> None:
    loop = plan(pp=2, virtual_stages=3, pp_schedule=PipelineSchedule.INTERLEAVED)
    assert [stages_of_rank(loop, rank) for rank in range(2)] == [(0, 2, 4), (1, 3, 5)]
    v_shaped = plan(pp=2, virtual_stages=2, pp_schedule=PipelineSchedule.ZBV)
    assert [stages_of_rank(v_shaped, rank) for rank in range(2)] == [(0, 3), (1, 2)]
    for chosen in (loop, v_shaped):
        for rank in range(2):
            assert {rank_of_stage(chosen, stage) for stage in stages_of_rank(chosen, rank)} == {rank}


class InPlace(nn.Module):
    """Adds in place: inside of a layer to what it computed, or to what the layer before returned."""

    def __init__(self, *, to_input: bool) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.to_input = to_input

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = x if self.to_input else self.left(x)
        own += self.right(x)
        return own


@pytest.mark.parametrize("to_input", [True, False])
def test_an_output_is_changed_by_who_writes_to_it_and_not_to_what_came_of_it(*, to_input: bool) -> None:
    module = nn.Sequential(nn.Linear(8, 8), *(InPlace(to_input=to_input) for _ in range(3)))
    way = route_of(module, torch.zeros(2, 8), FP32)
    changed = [shape.changed for event in way.events for shape in event.tensors]
    assert changed == [to_input] * 3 + [False]
