"""The parts of a transformer layer, counted by hand on a small one.

Width 8; 4 heads of 3 with 2 heads of keys and values, so queries are 12 wide, keys and values 6 each; 10
tokens; 2 bytes an element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small import SMALL

from parastrat.model import Operator, OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.architecture import LatentAttention, Norm, QkNorm, Scores
from parastrat.sources.attending import attention, attention_masks, by_masks, hidden_flops
from parastrat.sources.awaited import retained
from parastrat.sources.layers import (
    Part,
    Setting,
    activations,
    copies_input,
    dropout_masks,
    elementwise,
    joined,
    matmul,
    norm,
)
from parastrat.sources.presets import load_preset
from parastrat.sources.windows import Window
from parastrat.stack import Kernels
from parastrat.workload import Precision

Q, KV, T = 12, 6, 10
#: flash attention's fp32 log-sum-exp of each head and token
STATISTICS = 4 * 4 * T

OTHER_KERNELS = [kernels for kernels in Kernels if not kernels.eager]


def setting(kernels: Kernels = Kernels.EAGER, *, element: int = 2, **changes: Any) -> Setting:
    return Setting(architecture=replace(SMALL, **changes), tokens=T, element=element, kernels=kernels)


def products(part: Part) -> list[tuple[int, int, int, str, int]]:
    return [(o.m, o.n, o.k, o.split_side, o.count) for o in part.operators if o.kind is OperatorKind.MATMUL]


def only(part: Part, kind: OperatorKind) -> Operator:
    (found,) = [operator for operator in part.operators if operator.kind is kind]
    return found


def test_a_matmul_multiplies_and_adds() -> None:
    made = matmul(10, 3, 5, "n", count=2)
    assert made.flops == 2 * 10 * 3 * 5
    assert (made.m, made.n, made.k, made.count, made.bytes) == (10, 3, 5, 2, 0)
    assert (made.split, made.split_side, made.weighted) == (Split.TENSOR, "n", True)
    whole = matmul(10, 3, 5, "")
    assert (whole.split, whole.count) == (Split.REPLICATED, 1)


def test_elementwise_kernels_only_move() -> None:
    made = elementwise(7, Split.SEQUENCE)
    assert (made.flops, made.bytes, made.split, made.count) == (0, 7, Split.SEQUENCE, 1)
    assert not made.weighted


@pytest.mark.parametrize(
    ("norm_kind", "kernels", "element", "kept"),
    [
        # the residual's fp32 copy, the normalised input and the next input; 1/rms in fp32
        (Norm.RMS, Kernels.EAGER, 2, (4 + 2 + 2) * 8 + 4),
        (Norm.RMS, Kernels.EAGER, 4, (4 + 4 + 4) * 8 + 4),
        # the input, the next one, and 1/rms
        (Norm.RMS, Kernels.COMPILED, 2, 2 * 2 * 8 + 4),
        (Norm.LAYER, Kernels.COMPILED, 2, 2 * 2 * 8 + 4),
        # input and output; mean and 1/deviation
        (Norm.RMS, Kernels.FUSED, 2, 2 * 2 * 8 + 2 * 4),
        (Norm.LAYER, Kernels.EAGER, 2, 2 * 2 * 8 + 2 * 4),
        (Norm.LAYER, Kernels.FUSED, 4, 2 * 4 * 8 + 2 * 4),
    ],
)
def test_what_a_norm_keeps(norm_kind: Norm, kernels: Kernels, element: int, kept: float) -> None:
    own = setting(kernels, element=element, norm=norm_kind)
    assert norm(own, added=False).saved == Saved(sequence=kept * T)
    # the product behind it keeps its input whole, as it was gathered; Megatron gathers it again
    whole = 0 if kernels.fused else element * 8
    divided = Saved(sequence=(kept - whole) * T, replicated=whole * T)
    assert norm(own, added=True).saved == norm(own, added=False, gathered=True).saved == divided


def test_a_norm_that_experts_read_is_not_gathered() -> None:
    gathered, routed = (norm(setting(), added=True, routed=routed).saved for routed in (False, True))
    assert gathered.replicated == 2 * 8 * T
    assert routed == Saved(sequence=gathered.total)


def test_the_last_norm_reads_a_stream_in_fp32_itself() -> None:
    own = setting(fp32_stream=True)
    usual = norm(setting(), added=False).saved.total
    assert own.stream == 4
    assert norm(own, added=True).saved.total == usual
    assert norm(own, added=False, gathered=True).saved.total == usual + 2 * 8 * T


def test_t5s_norm_keeps_its_short_input_too() -> None:
    plain = norm(setting(), added=False).saved.sequence
    assert norm(setting(relative_buckets=32), added=False).saved.sequence == plain + 2 * 8 * T
    full = norm(setting(element=4), added=False)
    assert norm(setting(element=4, relative_buckets=32), added=False).saved == full.saved


@pytest.mark.parametrize(
    ("norm_kind", "kernels", "moved"),
    [
        # 40 bytes forward and 104 backward, over three
        (Norm.RMS, Kernels.EAGER, 48),
        (Norm.RMS, Kernels.COMPILED, 2 * 2),
        (Norm.LAYER, Kernels.EAGER, 2 * 2),
        (Norm.LAYER, Kernels.FUSED, 2 * 2),
    ],
)
def test_a_norm_reads_and_writes_what_its_kernels_do(norm_kind: Norm, kernels: Kernels, moved: int) -> None:
    alone = norm(setting(kernels, norm=norm_kind), added=False)
    assert only(alone, OperatorKind.ELEMENTWISE).bytes == moved * 8 * T
    # the addition reads two and writes one
    added = norm(setting(kernels, norm=norm_kind), added=True)
    assert only(added, OperatorKind.ELEMENTWISE).bytes == (moved + 3 * 2) * 8 * T
    assert only(added, OperatorKind.ELEMENTWISE).split is Split.SEQUENCE


def test_a_layer_norm_has_a_bias() -> None:
    assert norm(setting(), added=False).parameters == (Parameters(trainable=8),)
    assert norm(setting(norm=Norm.LAYER), added=False).parameters == (Parameters(trainable=2 * 8),)


def test_attentions_parameters() -> None:
    weights = 8 * (Q + 2 * KV) + Q * 8
    assert attention(setting(), causal=True).parameters == (
        Parameters(trainable=weights, split=Split.TENSOR),
    )
    biased = attention(setting(qkv_bias=True, output_bias=True, qk_norm=QkNorm.HEAD), causal=True)
    assert biased.parameters == (
        Parameters(trainable=weights + Q + 2 * KV, split=Split.TENSOR),
        # the bias of the output, and a norm over a head's queries and one over its keys
        Parameters(trainable=8 + 2 * 3),
    )
    wide = attention(setting(qk_norm=QkNorm.WIDTH), causal=True)
    assert wide.parameters == (Parameters(trainable=weights + Q + KV, split=Split.TENSOR),)
    normed = attention(setting(qk_norm=QkNorm.HEAD), causal=True)
    assert normed.parameters[1] == Parameters(trainable=2 * 3)
    # queries and values have biases, keys have none; each head has a sink
    partly = attention(setting(qkv_bias=True, key_bias=False, sinks=True), causal=True)
    assert partly.parameters == (Parameters(trainable=weights + Q + KV + 4, split=Split.TENSOR),)


def test_attentions_products() -> None:
    assert products(attention(setting(), causal=True)) == [
        (T, Q, 8, "n", 1),
        (T, KV, 8, "n", 2),
        (T, 8, Q, "k", 1),
    ]
    assert products(attention(setting(fused_qkv=True), causal=True)) == [
        (T, Q + 2 * KV, 8, "n", 1),
        (T, 8, Q, "k", 1),
    ]
    # keys and values of 7 tokens of another stack
    crossed = attention(setting(), causal=False, memory_tokens=7)
    assert products(crossed)[1] == (7, KV, 8, "n", 2)


@pytest.mark.parametrize(
    ("causal", "memory", "flops"),
    [
        # q k^T and its product with v, a multiplication and an addition each; a causal mask leaves half
        (False, None, 2 * 2 * T * T * Q),
        (True, None, 2 * T * T * Q),
        (False, 7, 2 * 2 * T * 7 * Q),
        (True, 7, 2 * 2 * T * 7 * Q),
    ],
)
def test_attentions_core(causal: bool, memory: int | None, flops: float) -> None:
    core = only(attention(setting(), causal=causal, memory_tokens=memory), OperatorKind.ATTENTION)
    assert (core.flops, core.bytes, core.split, core.weighted) == (flops, 0, Split.TENSOR, False)


@pytest.mark.parametrize(("dropout", "kept", "moved"), [(False, 2, 4 * 2), (True, 2 + 1 + 2, 6 * 2 + 1)])
@pytest.mark.parametrize("memory", [None, 7])
def test_attention_before_flash_keeps_its_scores(
    dropout: bool, kept: int, moved: int, memory: int | None
) -> None:
    made, flash = (
        attention(setting(kernels, dropout=dropout), causal=memory is None, memory_tokens=memory)
        for kernels in (Kernels.FUSED_MATH, Kernels.FUSED)
    )
    scores = 4 * T * (memory or T)
    # masked ones among them, and no log-sum-exp
    assert only(made, OperatorKind.ATTENTION).flops == 4 * scores * 3
    assert made.saved.tensor == flash.saved.tensor - STATISTICS + kept * scores
    assert made.core == Saved(tensor=kept * scores)
    assert made.selective == flash.selective + Saved(tensor=-STATISTICS)
    *others, softmax = [each for each in made.operators if each.kind is OperatorKind.ELEMENTWISE]
    assert (softmax.bytes * softmax.count, softmax.count) == (moved * scores, 2)
    assert others == [each for each in flash.operators if each.kind is OperatorKind.ELEMENTWISE]


@pytest.mark.parametrize(
    ("window", "near"),
    [
        # the first queries see fewer keys than the window has: on average 4 - 4^2 / (2 * 10)
        (Window(size=4, layers=1), 3.2),
        (Window(size=4, layers=1, chunked=True), 2),
        # a window of all tokens is none
        (Window(size=T, layers=1), T / 2),
    ],
)
def test_windows_leave_pairs_out_in_their_layers(window: Window, near: float) -> None:
    # one of three layers has the window
    pairs = near * T / 3 + 2 / 3 * T * T / 2
    core = only(attention(setting(window=window), causal=True), OperatorKind.ATTENTION)
    assert core.flops == pytest.approx(2 * 2 * pairs * Q)


@pytest.mark.parametrize("positions", [{"positions": 64}, {"relative_buckets": 32}, {"rotary": False}])
def test_rotary_positions_read_and_write_queries_and_keys(positions: dict[str, Any]) -> None:
    output = 2 * Q * T
    rotated = only(attention(setting(Kernels.FUSED), causal=True), OperatorKind.ELEMENTWISE)
    assert (rotated.bytes, rotated.split) == (2 * 2 * (Q + KV) * T + output, Split.TENSOR)
    plain = only(attention(setting(Kernels.FUSED, **positions), causal=True), OperatorKind.ELEMENTWISE)
    assert plain.bytes == output


def test_eager_kernels_turn_in_several_passes_and_repeat_keys_and_values() -> None:
    output = 2 * Q * T

    def moved(**changes: Any) -> float:
        return only(attention(setting(**changes), causal=True), OperatorKind.ELEMENTWISE).bytes

    assert moved() == 16 * (Q + KV) * T + 2 * 3 * Q * T + output
    assert moved(rotary=False) == 2 * 3 * Q * T + output
    # as many heads of keys as of queries
    assert moved(kv_heads=SMALL.heads) == 16 * 2 * Q * T + output


def test_attention_keeps_queries_keys_values_and_output() -> None:
    made = attention(setting(), causal=True)
    assert made.saved == Saved(tensor=2 * (Q + KV + KV + Q) * T + STATISTICS)
    assert made.core == Saved(tensor=STATISTICS)
    crossed = attention(setting(), causal=False, memory_tokens=7)
    assert crossed.saved == Saved(tensor=2 * (2 * Q * T + 2 * KV * 7) + STATISTICS)


@pytest.mark.parametrize("kernels", OTHER_KERNELS)
def test_only_eager_kernels_keep_more_of_normed_and_fused_projections(kernels: Kernels) -> None:
    plain = attention(setting(kernels), causal=True).saved.tensor
    for changes in ({"qk_norm": QkNorm.HEAD}, {"fused_qkv": True}):
        assert attention(setting(kernels, **changes), causal=True).saved.tensor == plain


def test_eager_kernels_keep_norms_of_heads() -> None:
    plain = attention(setting(), causal=True, memory_tokens=7).saved.tensor
    normed = attention(setting(qk_norm=QkNorm.HEAD), causal=True, memory_tokens=7).saved.tensor
    # for each head's row the fp32 copy, the normalised one, and 1/rms: 4 of queries, 2 of keys
    assert normed - plain == ((4 + 2) * 3 + 4) * (4 * T + 2 * 7)


@pytest.mark.parametrize("kernels", Kernels)
def test_queries_of_heads_first_are_kept_once_more(kernels: Kernels) -> None:
    more = attention(setting(kernels, heads_first=True), causal=True).saved.tensor
    plain = attention(setting(kernels), causal=True).saved.tensor
    assert more - plain == (0 if kernels.fused else 2 * Q * T)
    # what attention puts out is made again with it, its copy is not
    cores = [attention(setting(kernels, heads_first=copied), causal=True).core for copied in (True, False)]
    assert cores[0].tensor - cores[1].tensor == more - plain


@pytest.mark.parametrize("kernels", Kernels)
def test_values_may_keep_the_whole_projection(kernels: Kernels) -> None:
    more = attention(setting(kernels, values_in_projection=True), causal=True).saved
    assert more == attention(setting(kernels), causal=True).saved + Saved(
        tensor=2 * (Q + KV) * T if kernels.eager else 0
    )


def test_a_mask_of_all_pairs_is_kept_with_keys_and_values_for_each_query() -> None:
    plain = attention(setting(), causal=True)
    repeated = Saved(tensor=2 * 2 * (Q - KV) * T)
    mask = Saved(replicated=2 * T * T)
    masked = attention(setting(masked=True), causal=True)
    assert masked.saved == plain.saved + repeated + mask
    assert masked.core == plain.core + repeated + mask
    # of two layers one sees near keys alone; what it repeats is given to attention
    near = setting(window=Window(size=T - 1, layers=1), layers=2)
    assert attention(near, causal=True).saved == plain.saved + (repeated + mask).times(0.5)
    assert attention(near, causal=True).core == plain.core + mask.times(0.5)
    # as each of both keeps it
    none, given = (attention(each, causal=True) for each in by_masks(near))
    assert none.saved == plain.saved
    assert given.saved == plain.saved + repeated + mask
    assert given.core == plain.core + mask
    assert attention(setting(window=Window(size=T + 1, layers=1)), causal=True).saved == plain.saved
    # one as long as the sequence is made, and hides nothing
    whole = setting(window=Window(size=T, layers=1), layers=1)
    assert attention(whole, causal=True).saved == plain.saved + repeated + mask
    for other in OTHER_KERNELS:
        assert attention(setting(other, masked=True), causal=True).saved.replicated == 0


def test_masks_are_made_once_for_all_layers() -> None:
    near, far = (Window(size=size, layers=1) for size in (T, T + 1))
    assert attention_masks(setting()) == attention_masks(setting(window=far)) == Saved()
    assert attention_masks(setting(window=near)) == Saved(fixed=T * T)
    assert attention_masks(setting(masked=True)) == Saved(fixed=T * T)
    assert attention_masks(setting(scores=Scores.PLAIN)) == Saved(replicated=2 * T * T)
    # of the stream's format, and of two kinds
    both = replace(setting(scores=Scores.CAPPED, window=near, layers=2), autocast=True)
    assert attention_masks(both) == Saved(replicated=2 * 4 * T * T)
    assert attention_masks(setting(Kernels.FUSED_MATH, scores=Scores.PLAIN)) == Saved()


def test_a_kernel_that_takes_a_mask_computes_the_pairs_that_it_hides() -> None:
    causal, of_pair = T * T / 2, 4 * Q
    assert hidden_flops(setting()) == 0
    assert hidden_flops(setting(masked=True)) == of_pair * causal
    # of two layers one sees near keys alone, and computes all; the other's kernel leaves later keys out
    size = 4
    near = Window(size=size, layers=1)
    seen = size * T - size**2 / 2
    assert hidden_flops(setting(window=near, layers=2)) == of_pair * (T * T - seen) / 2
    none, given = by_masks(setting(window=near, layers=2))
    assert (hidden_flops(none), hidden_flops(given)) == (0, of_pair * (T * T - seen))
    # kernels of windows skip what they hide
    assert hidden_flops(setting(Kernels.FUSED_MATH, window=near, layers=2)) == 0


def test_what_attentions_products_give_in_their_order() -> None:
    made, fused = (attention(setting(fused_qkv=joined), causal=True) for joined in (False, True))
    assert made.selective == fused.selective == Saved(tensor=2 * Q * T + STATISTICS)
    last = Saved(replicated=2 * 8 * T)
    assert made.outputs == (*(Saved(tensor=2 * width * T) for width in (Q, KV, KV)), last)
    assert fused.outputs == (Saved(tensor=2 * (Q + 2 * KV) * T), last)


LATENT = LatentAttention(q_rank=16, kv_rank=11, nope_dim=3, rope_dim=2, v_dim=4)
#: 4 heads of 3 + 2 and of 4
QK, V = 20, 16


def latent(kernels: Kernels = Kernels.EAGER) -> Part:
    return attention(setting(kernels, latent=LATENT), causal=True)


def test_latent_attentions_parameters() -> None:
    # arXiv:2405.04434, section 2.1: down to 16 and to 11 with 2 rotary; up to queries, keys and values
    up = 16 * QK + 11 * 4 * (3 + 4)
    down = 8 * 16 + 8 * (11 + 2)
    assert latent().parameters == (
        Parameters(trainable=up + V * 8, split=Split.TENSOR),
        Parameters(trainable=down + 16 + 11),
    )


def test_latent_attentions_operators() -> None:
    made = latent()
    assert products(made) == [
        (T, 16, 8, "", 1),
        (T, 11 + 2, 8, "", 1),
        (T, QK, 16, "n", 1),
        (T, 4 * (3 + 4), 11, "n", 1),
        (T, 8, V, "k", 1),
    ]
    # scores over 20, their product with values over 16; half is masked
    assert only(made, OperatorKind.ATTENTION).flops == 2 * T * T * (QK + V) / 2
    moved = only(made, OperatorKind.ELEMENTWISE)
    assert (moved.bytes, moved.split) == (3 * 2 * (QK + 16 + 11) * T, Split.TENSOR)


def test_what_latent_attention_keeps() -> None:
    tensor = 2 * (QK + QK + V + V) * T + STATISTICS
    # values are a part of what expands keys too, which nobody copies
    whole = tensor + 2 * 4 * 3 * T
    assert latent().saved == Saved(tensor=whole, replicated=(4 + 2 * 2) * (16 + 11) * T)
    assert latent(Kernels.FUSED).saved == Saved(tensor=tensor, replicated=2 * 2 * (16 + 11) * T)
    assert latent().selective == Saved(tensor=2 * V * T + STATISTICS)
    # down to queries, up, down to keys and values, up, and back to the width
    low_rank = (Saved(replicated=2 * width * T) for width in (16, 11 + 2))
    high_rank = (Saved(tensor=2 * width * T) for width in (QK, 4 * (3 + 4)))
    in_turn = [each for pair in zip(low_rank, high_rank, strict=True) for each in pair]
    assert latent().outputs == (*in_turn, Saved(replicated=2 * 8 * T))
    assert latent().core == Saved(tensor=STATISTICS)


def test_what_every_product_gives_and_attention() -> None:
    made = attention(setting(), causal=True)
    assert made.attended == Saved(tensor=2 * Q * T + STATISTICS)
    # queries, keys and values, and the output behind them, which is reduced along the sequence
    assert made.products == Saved(tensor=2 * (Q + 2 * KV) * T, sequence=2 * 8 * T)
    assert latent().attended == Saved(tensor=2 * V * T + STATISTICS)
    assert latent().products == Saved(
        tensor=2 * (QK + 4 * (3 + 4)) * T, replicated=2 * (16 + 11 + 2) * T, sequence=2 * 8 * T
    )


def test_dropout_keeps_a_byte_an_element_of_both_branches() -> None:
    assert dropout_masks(setting()) == Part()
    assert dropout_masks(setting(dropout=True)).saved == Saved(sequence=2 * 8 * T)


def test_parts_in_sequence_add_up() -> None:
    one = Part(
        parameters=(Parameters(trainable=1),),
        operators=(elementwise(1, Split.TENSOR),),
        saved=Saved(tensor=1),
        selective=Saved(sequence=2),
        outputs=(Saved(loss=6), Saved(loss=7)),
        core=Saved(replicated=3),
        attended=Saved(tensor=4),
        products=Saved(tensor=5),
    )
    both = joined(one, one)
    assert (both.parameters, both.operators) == (one.parameters * 2, one.operators * 2)
    assert (both.saved, both.selective) == (Saved(tensor=2), Saved(sequence=4))
    assert both.outputs == one.outputs * 2
    assert both.core == Saved(replicated=6)
    assert (both.attended, both.products) == (Saved(tensor=8), Saved(tensor=10))


def test_policies_keep_the_input_and_what_they_name() -> None:
    part = Part(
        saved=Saved(replicated=5, tensor=70, sequence=11),
        selective=Saved(tensor=15, sequence=3),
        # the first and the third
        outputs=(Saved(tensor=1), Saved(tensor=2), Saved(tensor=4)),
        core=Saved(tensor=30),
        attended=Saved(tensor=40),
        products=Saved(tensor=7, sequence=1),
    )
    kept = activations(part, 2.0)
    assert kept.none == part.saved
    assert kept.attention == Saved(replicated=5, tensor=70 - 30, sequence=11)
    assert kept.selective == Saved(tensor=20, sequence=3 + 2)
    assert kept.full == Saved(sequence=2)
    assert kept.attended == Saved(tensor=40, sequence=2)
    assert kept.products == Saved(tensor=40 + 7, sequence=2 + 1)


def test_gradients_wait_of_norms_that_have_weights_alone() -> None:
    def waiting(name: str) -> float:
        source = load_preset(name)
        assert source is not None
        layers = (block for block in source.at(64, Precision.BF16, Kernels.EAGER).blocks if block.unit)
        return next(layers).awaited.total

    # OLMo's have none: of seven products the outputs, in two bytes
    assert waiting("olmo-1b") == 2 * 64 * (5 * 2048 + 2 * 8192)
    # weights that multiply in fp32 wait for gradients in fp32: four norms of the width, and those of heads
    products = 4 * 256 + 2 * 256 + 1152 + 2 * 6912 + 1152
    assert waiting("gemma-3-1b") == 64 * (2 * products + 4 * (4 * 1152 + 5 * 256))
    # two norms of the width, and those of queries and keys
    products = 4096 + 2 * 1024 + 2560 + 2 * 9728 + 2560
    assert waiting("qwen3-4b") == 2 * 64 * (products + 2 * 2560 + 4096 + 1024)


@pytest.mark.parametrize(
    ("norm_kind", "plain", "in_fp32"),
    [
        (Norm.RMS, True, False),
        (Norm.RMS_FP32, True, False),
        (Norm.BARE, True, False),
        # it keeps what lies from the mean
        (Norm.COMPOSITE, True, True),
        (Norm.LAYER, False, False),
    ],
)
def test_norms_that_copy_what_they_are_given_do_not_keep_that(
    norm_kind: Norm, plain: bool, in_fp32: bool
) -> None:
    assert copies_input(setting(norm=norm_kind)) is plain
    assert copies_input(setting(norm=norm_kind, element=4)) is in_fp32
    assert copies_input(replace(setting(norm=norm_kind), autocast=True)) is in_fp32
    # T5's multiplies it
    assert copies_input(setting(norm=Norm.RMS, relative_buckets=32)) is False
    assert copies_input(setting(Kernels.FUSED, norm=norm_kind)) is False


def test_windows_say_which_layers_have_them() -> None:
    # of 13 layers two see all keys, each the last of six
    near = Window(size=4, layers=11).near(13)
    assert [place for place, own in enumerate(near) if not own] == [5, 11]
    assert Window(size=4, layers=3, whole=(0,)).near(4) == [False, True, True, True]
    assert Window(size=4, layers=3).near(3) == [True] * 3


@pytest.mark.parametrize(
    ("norm_kind", "made"),
    # five tensors in fp32, of which a weight may wait for one, and the residual's gradient
    [(Norm.RMS, 22), (Norm.BARE, 22), (Norm.RMS_FP32, 18), (Norm.COMPOSITE, 18), (Norm.LAYER, 0)],
)
def test_what_a_norms_backward_makes_beside_all_that_its_layer_keeps(norm_kind: Norm, made: int) -> None:
    assert retained(setting(norm=norm_kind)) == Saved(sequence=made * 8 * T)
    assert retained(setting(Kernels.FUSED, norm=norm_kind)) == Saved()
