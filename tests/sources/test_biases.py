"""T5's biases counted by hand: 4 heads of 3 over 10 tokens, so 400 numbers of 100 pairs, in 2 bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import SMALL

from parastrat.model import Block, Family, Parameters, Split
from parastrat.saved import NOTHING, Saved
from parastrat.sources.architecture import Audio, Norm
from parastrat.sources.biases import at_biases, is_biased, kept_biases, made_once, passed_on
from parastrat.sources.layers import Part, Setting
from parastrat.sources.two_stacks import encoder_decoder
from parastrat.stack import Kernels

T, H, PAIRS, HEADS, FFN = 10, 8, 100, 4, 20
BIASED = replace(
    SMALL,
    family=Family.ENCODER_DECODER,
    encoder_layers=2,
    relative_buckets=32,
    gated=False,
    rectified=True,
    dropout=True,
    inner_dropout=True,
    final_dropout=True,
)
SETTING = Setting(architecture=BIASED, tokens=T, element=2, kernels=Kernels.EAGER)
WIDTH, MASK = 2 * T * H, T * H


def named(name: str, setting: Setting = SETTING) -> Block:
    (found,) = [block for block in encoder_decoder(setting) if block.name == name]
    return found


def without(**changes: object) -> Setting:
    return replace(SETTING, architecture=replace(BIASED, **changes))


def test_hand_fused_stacks_and_others_have_none() -> None:
    fused = replace(SETTING, kernels=Kernels.FUSED)
    for setting in (without(relative_buckets=0), fused):
        assert not is_biased(setting)
        assert kept_biases(setting, causal=True) == Part()
        assert made_once(setting, T) == (NOTHING, NOTHING)
        assert passed_on(setting) == NOTHING
    assert is_biased(replace(SETTING, kernels=Kernels.COMPILED))


def test_each_layer_keeps_a_copy_for_all_samples() -> None:
    assert kept_biases(SETTING, causal=False).saved == Saved(fixed=2 * HEADS * PAIRS)
    # a byte of a mask for each pair
    assert kept_biases(SETTING, causal=True).saved == Saved(fixed=(2 * HEADS + 1) * PAIRS)
    # products read short copies, what is passed on is in fp32
    cast = replace(SETTING, autocast=True)
    assert kept_biases(cast, causal=False).saved == Saved(fixed=2 * HEADS * PAIRS)
    assert (passed_on(SETTING).fixed, passed_on(cast).fixed) == (2 * HEADS * PAIRS, 4 * HEADS * PAIRS)
    # of an encoder's tokens zeros, which nothing is added to
    assert passed_on(cast, T) == Saved(fixed=(4 + 2) * HEADS * PAIRS)


def test_the_first_layers_keep_buckets_and_zeros() -> None:
    assert made_once(SETTING) == (Saved(fixed=8 * PAIRS), Saved(fixed=2 * HEADS * PAIRS))
    # zeros for attention to 7 tokens of an encoder
    zeros = 2 * HEADS * T * 7
    once, again = made_once(replace(SETTING, autocast=True), 7)
    assert once == Saved(fixed=8 * PAIRS + zeros)
    assert again == Saved(fixed=4 * HEADS * PAIRS + zeros)


@pytest.mark.parametrize("kernels", [Kernels.EAGER, Kernels.COMPILED])
def test_the_table_is_followed_by_buckets_or_by_the_biases_themselves(kernels: Kernels) -> None:
    kept = named("embedding", replace(SETTING, kernels=kernels)).activations
    assert (kept.none.fixed, kept.attention.fixed) == (8 * PAIRS, 8 * PAIRS)
    assert (kept.selective.fixed, kept.full.fixed) == (2 * HEADS * PAIRS, 2 * HEADS * PAIRS)


def test_the_kernel_makes_gradients_of_biases_for_every_sample() -> None:
    gone = Part(parameters=(Parameters(trainable=100),), saved=Saved(tensor=50, sequence=70))
    layer = Part(parameters=(Parameters(trainable=400),))
    moment = at_biases(SETTING, gone, layer)
    # queries and output of 4 heads, keys and values of 2
    own = Saved(replicated=2 * T * (2 * 4 * 3 + 2 * 2 * 3 + HEADS * T), sequence=WIDTH)
    assert moment.working == own + Saved(tensor=-50, sequence=-70)
    assert moment.meanwhile == (100 + 12 * H) / 400


def test_dropout_stands_inside_of_the_feed_forward_and_behind_each_stack() -> None:
    plain = without(inner_dropout=False, final_dropout=False)

    def more(name: str) -> Saved:
        kept = named(name).activations.none
        return kept + named(name, plain).activations.none.times(-1)

    # what the ReLU gives and what is left of it, and a byte of a mask
    inner = Saved(tensor=(2 + 1) * FFN * T)
    assert more("encoder layer") == more("decoder layer") == inner
    assert more("encoder output") == more("head") == Saved(sequence=MASK)
    # a compiler makes the ReLU again
    compiled = replace(SETTING, kernels=Kernels.COMPILED), replace(plain, kernels=Kernels.COMPILED)
    layers = [named("encoder layer", setting).activations.none.total for setting in compiled]
    assert layers[0] - layers[1] == FFN * T
    # without dropout there is none
    for name in ("encoder layer", "encoder output", "head"):
        kept = [
            named(name, without(dropout=False, inner_dropout=within, final_dropout=within))
            for within in (True, False)
        ]
        assert kept[0] == kept[1]


def test_most_is_held_before_the_inner_dropout() -> None:
    layer = named("encoder layer")
    # gradients of what dropout gave, of what the last product gave and of the stream, without a mask; the
    # encoder's output, which the script holds, and the biases' gradient
    memory = Saved(replicated=WIDTH, fixed=2 * HEADS * PAIRS)
    inner = Saved(tensor=2 * FFN * T, replicated=WIDTH, sequence=WIDTH - MASK)
    assert layer.working == inner + memory
    assert [moment.meanwhile for moment in layer.busy] == sorted(m.meanwhile for m in layer.busy)
    assert len(layer.busy) == 2


def test_a_decoders_layers_drop_out_three_times() -> None:
    dropped, plain = (
        named("decoder layer", without(dropout=dropout, inner_dropout=False)) for dropout in (True, False)
    )
    assert dropped.activations.none.total - plain.activations.none.total == 3 * MASK


def test_attention_with_biases_runs_over_all_pairs() -> None:
    # of the decoder's own attention the half that the bias hides is computed too: two products of 12
    assert named("decoder layer").hidden_flops == 2 * PAIRS * HEADS * 3
    assert named("encoder layer").hidden_flops == 0


def test_tp_divides_the_feed_forward_alone() -> None:
    encoder, decoder = named("encoder layer"), named("decoder layer")
    for layer in (encoder, decoder):
        divided = [group.trainable for group in layer.parameters if group.split is Split.TENSOR]
        assert divided == [2 * H * FFN]
        assert layer.tensor_parallel_collectives == 1
        assert layer.activations.none.tensor == (2 * 2 + 1) * FFN * T
    # hand-fused stacks divide heads
    fused = named("decoder layer", replace(SETTING, kernels=Kernels.FUSED))
    assert fused.tensor_parallel_collectives == 3


def test_what_stands_between_the_stacks() -> None:
    border = named("encoder output")
    buckets, tokens = 2 * 32 * HEADS, 100 * H
    assert border.parameter_count == H + buckets + tokens
    assert border.added == border.parameters[-1]
    # the encoder's output, and the decoder's tokens
    assert border.boundary_bytes == 2 * WIDTH
    norm = named("encoder output", without(dropout=False)).activations.none
    assert border.activations.none == norm + Saved(sequence=2 * MASK)
    assert norm.fixed == 8 * PAIRS + 2 * HEADS * PAIRS


@pytest.mark.parametrize("heard", [False, True])
def test_layers_that_run_again_read_the_encoders_output_in_fp32(heard: bool) -> None:
    a = replace(BIASED, norm=Norm.LAYER, positions=16, relative_buckets=0, dropout=False)
    setting = Setting(
        architecture=replace(a, audio=Audio(channels=5, frames=2 * T)) if heard else a,
        tokens=T,
        element=2,
        kernels=Kernels.EAGER,
        autocast=True,
    )
    border, layer = named("encoder output", setting), named("decoder layer", setting)
    kept = border.activations
    assert kept.full == kept.selective == kept.none + Saved(sequence=4 * T * H)
    # else each layer keeps short copies, for keys and for values
    plain = named("decoder layer", replace(setting, autocast=False))
    assert layer.activations.none.replicated - plain.activations.none.replicated >= 2 * WIDTH
