"""Whole transformers, counted by hand: width 8, 4 heads of 3, 2 of keys and values, 10 tokens, 2 bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import SMALL

from parastrat.errors import ModelError
from parastrat.model import Block, Family, ModelSpec
from parastrat.saved import Saved
from parastrat.sources.architecture import Experts, Image, Scores
from parastrat.sources.layers import Setting, norm
from parastrat.sources.transformer import transformer
from parastrat.sources.windows import Window
from parastrat.stack import Kernels
from parastrat.workload import Precision

EXPERTS = Experts(count=6, top_k=2, ffn=5)
T = 10
#: the residual stream of one sample
WIDTH = 2 * T * 8

NORM = 8
ATTENTION = 8 * (12 + 2 * 6) + 12 * 8
FEED_FORWARD = 8 * 2 * 20 + 20 * 8
LAYER = 2 * NORM + ATTENTION + FEED_FORWARD
TABLE = 100 * 8


SETTING = Setting(architecture=SMALL, tokens=T, element=2, kernels=Kernels.EAGER)


def model(length: int | None = T, **changes: Any) -> ModelSpec:
    return transformer(replace(SMALL, **changes), length, Precision.BF16_MIXED, Kernels.EAGER, ref="small")


def named(spec: ModelSpec, name: str) -> Block:
    (found,) = [block for block in spec.blocks if block.name == name]
    return found


def test_a_decoder_is_its_table_layers_and_head() -> None:
    spec = model()
    assert [(block.name, block.repeat, block.unit) for block in spec.blocks] == [
        ("embedding", 1, False),
        ("layer", 3, True),
        ("head", 1, False),
    ]
    assert named(spec, "layer").parameter_count == LAYER
    assert spec.parameters == spec.active_parameters == 3 * LAYER + 2 * TABLE + NORM
    assert (spec.layers, spec.causal, spec.sequence_length, spec.vocab) == (3, True, T, 100)
    assert (spec.hidden, spec.heads, spec.kv_heads, spec.experts, spec.caveats) == (8, 4, 2, None, ())


def test_layers_that_are_given_masks_stand_apart_from_others() -> None:
    near = Window(size=4, layers=2)

    def repeats(**changes: Any) -> list[int]:
        return [block.repeat for block in model(**changes).blocks[1:-1]]

    spec = model(window=near)
    assert repeats(window=near) == [2, 1]
    masked, plain = spec.blocks[1:3]
    assert masked.activations.none.replicated - plain.activations.none.replicated == 2 * T * T
    assert masked.hidden_flops > plain.hidden_flops == 0
    assert repeats(window=replace(near, whole=(1,))) == [1, 1, 1]
    # all, or none, or scores that all have
    assert repeats(window=Window(size=4, layers=3)) == repeats(window=Window(size=T + 1, layers=2)) == [3]
    assert repeats(window=near, scores=Scores.PLAIN) == [3]
    mixed = Experts(count=6, top_k=2, ffn=5, dense_layers=1)
    assert repeats(window=near, experts=mixed) == [1, 1, 1]


def test_no_model_has_more_layers_than_can_be_counted() -> None:
    for deep in (replace(SMALL, layers=10_001), replace(SMALL, encoder_layers=10_000)):
        with pytest.raises(ModelError, match="layers are no model's"):
            transformer(deep, 8, Precision.FP32, Kernels.EAGER, "deep")


def test_a_tied_table_counts_once() -> None:
    assert model(tied=True).parameters == 3 * LAYER + TABLE + NORM


def test_what_a_layer_sends_and_works_on() -> None:
    layer = named(model(), "layer")
    # behind attention and behind the feed-forward: arXiv:1909.08053, section 3
    assert (layer.tensor_parallel_collectives, layer.tensor_parallel_bytes) == (2, WIDTH)
    assert (layer.boundary_bytes, layer.expert_parallel_bytes) == (WIDTH, 0)
    # keys and values, 2 heads of 3
    assert layer.context_parallel_bytes == 2 * 2 * T * 2 * 3
    # gradients of two inner tensors, and of what two products read, summands until they are added up
    assert layer.working == Saved(tensor=2 * 2 * 20 * T, replicated=2 * WIDTH)
    assert layer.activations.full == Saved(sequence=WIDTH)


def test_without_a_length_a_sample_is_one_token() -> None:
    assert named(model(None), "layer").boundary_bytes == 2 * 8


def test_dropouts_masks_are_kept_by_each_layer() -> None:
    kept = named(model(dropout=True), "layer").activations.none.total
    assert kept - named(model(), "layer").activations.none.total == 2 * 8 * T


def test_a_mixture_keeps_its_first_layers_dense() -> None:
    spec = model(experts=replace(EXPERTS, dense_layers=1))
    assert [(block.name, block.repeat) for block in spec.blocks[1:3]] == [("layer", 1), ("expert layer", 2)]
    experts = 6 * (8 * 2 * 5 + 5 * 8)
    mixed = 2 * NORM + ATTENTION + 8 * 6 + experts
    total = LAYER + 2 * mixed + 2 * TABLE + NORM
    assert spec.parameters == total
    # a token passes 2 of 6
    assert spec.active_parameters == total - 2 * experts * 4 / 6
    assert (spec.experts, spec.layers) == (6, 3)
    assert spec.caveats == ("tokens are taken to spread evenly over the experts",)


def test_every_so_many_layers_of_a_mixture_have_experts() -> None:
    spec = model(layers=7, experts=replace(EXPERTS, period=3))
    layers = [(block.name, block.repeat) for block in spec.blocks[1:-1]]
    assert layers == [("layer", 2), ("expert layer", 1), ("layer", 2), ("expert layer", 1), ("layer", 1)]


@pytest.mark.parametrize("norms", [2, 4])
def test_norms_behind_attention_and_feed_forward_add_nothing(norms: int) -> None:
    def bytes_of(*, layer_norms: int) -> float:
        return sum(operator.bytes for operator in named(model(layer_norms=layer_norms), "layer").operators)

    # the first two read what is added to the residual too
    added, plain = (norm(SETTING, added=added).operators[0].bytes for added in (True, False))
    assert added > plain
    assert bytes_of(layer_norms=norms) - bytes_of(layer_norms=0) == 2 * added + (norms - 2) * plain


def test_a_mixture_sends_each_token_to_its_experts() -> None:
    spec = model(experts=EXPERTS)
    assert [block.name for block in spec.blocks] == ["embedding", "expert layer", "head"]
    layer = named(spec, "expert layer")
    assert layer.expert_parallel_bytes == 2 * WIDTH
    assert layer.working == Saved(expert=2 * 2 * 5 * 2 * T, sequence=2 * WIDTH)
    dense = named(model(experts=replace(EXPERTS, dense_layers=1)), "layer")
    assert dense.expert_parallel_bytes == 0
    assert dense.working == named(model(), "layer").working


T5: dict[str, Any] = {"family": Family.ENCODER_DECODER, "encoder_layers": 2, "relative_buckets": 32}


def test_an_encoder_decoder_crosses_its_stacks() -> None:
    spec = model(**T5)
    assert [(block.name, block.repeat) for block in spec.blocks] == [
        ("embedding", 1),
        ("encoder layer", 2),
        ("encoder output", 1),
        ("decoder layer", 3),
        ("head", 1),
    ]
    encoder, decoder = named(spec, "encoder layer"), named(spec, "decoder layer")
    assert decoder.parameter_count - encoder.parameter_count == NORM + ATTENTION
    # a table of positions for each stack, of 32 buckets for each head; tokens are looked up here too
    assert named(spec, "encoder output").parameter_count == NORM + 2 * 32 * 4 + TABLE
    # which counts once, with logits of its own
    layers = 2 * encoder.parameter_count + 3 * decoder.parameter_count
    assert spec.parameters == layers + 2 * TABLE + 2 * NORM + 2 * 32 * 4
    assert model(**T5, tied=True).parameters == spec.parameters - TABLE
    assert (spec.layers, spec.causal) == (5, True)
    assert spec.caveats == ("the decoder's sequence is taken as long as the encoder's",)


def test_decoder_layers_carry_the_encoders_output_along() -> None:
    spec = model(**T5)
    encoder, decoder = named(spec, "encoder layer"), named(spec, "decoder layer")
    # beside biases of 4 heads
    biases = 2 * 4 * T * T
    assert (encoder.boundary_bytes, decoder.boundary_bytes) == (WIDTH, 2 * WIDTH)
    assert encoder.boundary_fixed == biases
    # and zeros in place of biases for the encoder's tokens
    assert decoder.boundary_fixed == 2 * biases
    # the encoder's output is one tensor for all layers that are computed again
    assert encoder.activations.full == decoder.activations.full == Saved(sequence=WIDTH)
    assert named(spec, "encoder output").activations.full.sequence >= WIDTH
    # attention, whose biases are of all heads, is whole on every rank
    assert (encoder.tensor_parallel_collectives, decoder.tensor_parallel_collectives) == (1, 1)
    heard = model(**T5 | {"relative_buckets": 0}).blocks
    assert [heard[place].tensor_parallel_collectives for place in (1, 3)] == [2, 3]
    # the decoder's own attention is masked, that to the encoder is not
    core = 2 * 2 * T * T * 12
    halves = [operator.flops for operator in decoder.operators if operator.kind.value == "attention"]
    assert halves == [core / 2, core]
    assert [o.flops for o in encoder.operators if o.kind.value == "attention"] == [core]


@pytest.mark.parametrize(
    ("family", "causal"),
    [(Family.DECODER, True), (Family.ENCODER, False), (Family.VISION_TRANSFORMER, False)],
)
def test_only_decoders_mask(family: Family, causal: bool) -> None:
    image = Image(size=12, patch=4, channels=3, classes=7) if family is Family.VISION_TRANSFORMER else None
    spec = model(family=family, image=image)
    tokens = 3 * 3 + 1
    (core,) = [o for o in named(spec, "layer").operators if o.kind.value == "attention"]
    assert core.flops == 2 * 2 * tokens * tokens * 12 / (2 if causal else 1)
    assert spec.causal is causal


def test_images_bring_their_tokens() -> None:
    image = Image(size=16, patch=4, channels=3, classes=7)
    spec = model(None, family=Family.VISION_TRANSFORMER, image=image)
    assert [block.name for block in spec.blocks] == ["patches", "layer", "head"]
    assert named(spec, "layer").boundary_bytes == 2 * (4 * 4 + 1) * 8
    assert (spec.sequence_length, spec.vocab) == (None, None)
