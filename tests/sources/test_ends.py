"""What stands outside of the repeated layers, counted by hand on the small transformer of test_layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sources.test_layers import T, only, setting

from parastrat.model import Block, Family, OperatorKind, Parameters, Split
from parastrat.saved import Saved
from parastrat.sources.architecture import Audio, Image
from parastrat.sources.ends import TIED, classifier, embedding, head, patches, spectrogram, table
from parastrat.sources.layers import norm
from parastrat.stack import Kernels

#: width, and the residual stream of one sample
H = 8
WIDTH = 2 * T * H
VOCABULARY = 100
LOGITS = VOCABULARY * T
NORM = Parameters(trainable=H)
#: what eager RMS norms keep
NORM_KEPT = 680


def products(block: Block) -> list[tuple[int, int, int, str, float]]:
    return [(o.m, o.n, o.k, o.split_side, o.flops) for o in block.operators if o.m]


def test_the_norm_is_the_layers() -> None:
    assert norm(setting(), added=False).saved == Saved(sequence=NORM_KEPT)


def test_a_table_is_read_and_its_tokens_are_kept() -> None:
    block = embedding(setting())
    assert (block.name, block.repeat, block.unit) == ("embedding", 1, False)
    assert block.parameters == (Parameters(trainable=VOCABULARY * H, split=Split.VOCABULARY),)
    look_up = only(block, OperatorKind.EMBEDDING)
    assert (look_up.flops, look_up.bytes, look_up.split) == (0, 2 * WIDTH, Split.SEQUENCE)
    # the identities of the tokens, eight bytes each
    assert block.activations.none == block.activations.attention == Saved(replicated=80)
    # the first layer that runs again is given all of a sequence, of which tp's ranks take a stretch each
    again = Saved(replicated=80 + WIDTH, sequence=-WIDTH)
    assert block.activations.selective == block.activations.full == again
    # attention that runs again is given its mask again
    masked = embedding(setting(masked=True)).activations
    assert (masked.none, masked.attention) == (Saved(replicated=80), Saved(replicated=80, fixed=T * T))
    # as stages without the embedding make it
    assert embedding(setting(masked=True)).masks == Saved(fixed=T * T)
    fused = embedding(setting(kernels=Kernels.FUSED)).activations
    assert fused.full == fused.none
    assert (block.working, block.boundary_bytes) == (Saved(sequence=WIDTH), WIDTH)


def test_positions_and_segments_are_looked_up_too_and_dropout_keeps_a_mask() -> None:
    block = embedding(setting(positions=7, segments=3, dropout=True, tied=True))
    table, others = block.parameters
    assert table.tie_group == TIED
    assert others == Parameters(trainable=(7 + 3) * H)
    assert only(block, OperatorKind.EMBEDDING).bytes == 3 * 2 * WIDTH
    assert block.activations.none == Saved(sequence=H * T, replicated=80)
    assert only(embedding(setting(positions=7)), OperatorKind.EMBEDDING).bytes == 2 * 2 * WIDTH
    assert only(embedding(setting(segments=3)), OperatorKind.EMBEDDING).bytes == 2 * 2 * WIDTH


@pytest.mark.parametrize("changes", [{"embedding_norm": True}, {"family": Family.ENCODER}])
def test_a_norm_may_stand_behind_the_table(changes: dict[str, Any]) -> None:
    block = embedding(setting(**changes))
    assert block.parameters[1] == NORM
    # what it makes is the first layer's input, which that keeps itself
    assert block.activations.none == Saved(sequence=NORM_KEPT - WIDTH, replicated=80)


@pytest.mark.parametrize(
    ("kernels", "family", "kept", "again"),
    [
        # two of the log-softmax's size, beside the logits that the script holds
        (Kernels.EAGER, Family.DECODER, 4, 8),
        # their loss takes logits in the compute format
        (Kernels.EAGER, Family.ENCODER, 2, 4),
        # blocks are compiled, the loss is the script's
        (Kernels.COMPILED, Family.DECODER, 4, 8),
        (Kernels.COMPILED_LOSS, Family.DECODER, 2, 2),
        # though blocks are eager
        (Kernels.EAGER_BLOCKS, Family.DECODER, 2, 2),
        (Kernels.FUSED, Family.DECODER, 4, 2),
        (Kernels.FUSED_MATH, Family.DECODER, 4, 2),
    ],
)
def test_bytes_of_each_logit(kernels: Kernels, family: Family, kept: int, again: int) -> None:
    block = head(setting(kernels, family=family, final_norm=False))
    # the product keeps what the last layer gave
    assert block.activations.none == block.activations.full == Saved(loss=kept * LOGITS, replicated=WIDTH)
    assert block.working == Saved(loss=again * LOGITS)
    cast = head(replace(setting(kernels, family=family, final_norm=False), autocast=True))
    # a log-softmax in fp32, whatever the model, where the loss is torch's own
    own = kernels in (Kernels.EAGER, Kernels.COMPILED)
    assert cast.activations.none == Saved(loss=(4 if own else kept) * LOGITS, replicated=WIDTH)
    # in parallel one of the log-softmax's size more or less, but where the loss is one kernel
    several = kernels in (Kernels.EAGER, Kernels.COMPILED)
    assert block.loss_parallel_bytes == (kept * LOGITS if several else 0)
    assert block.output == (Saved(loss=2 * LOGITS) if several else Saved())


def test_a_head_is_a_norm_a_matrix_and_the_loss() -> None:
    block = head(setting())
    assert (block.name, block.repeat, block.unit, block.boundary_bytes) == ("head", 1, False, 0)
    assert block.parameters == (NORM, Parameters(trainable=VOCABULARY * H, split=Split.VOCABULARY))
    assert products(block) == [(T, VOCABULARY, H, "n", 2 * T * VOCABULARY * H)]
    loss = block.operators[-1]
    # read and written in the compute format and in fp32
    assert (loss.bytes, loss.split) == ((2 + 4 * 4) * LOGITS, Split.VOCABULARY)
    # tensor parallelism gathers the norm's output, and the product keeps it whole
    assert block.activations.none.sequence == NORM_KEPT - WIDTH
    assert block.activations.none.replicated == WIDTH


def test_a_head_may_have_biases_and_share_the_table() -> None:
    table, bias = head(setting(head_bias=True, tied=True, final_norm=False)).parameters
    assert (table.tie_group, bias) == (TIED, Parameters(trainable=VOCABULARY, split=Split.VOCABULARY))


def test_berts_head_is_a_matrix_and_a_norm_before_the_logits_and_a_pooler() -> None:
    block = head(setting(transform_head=True, pooler=True))
    counts = [group.trainable for group in block.parameters]
    assert counts == [H * H + H, H, VOCABULARY * H, VOCABULARY, (H * H + H) + (2 * H + 2)]
    assert products(block) == [
        (T, H, H, "", 2 * T * H * H),
        # whole on each tp rank, as the table, where nothing is fused by hand
        (T, VOCABULARY, H, "", 2 * T * VOCABULARY * H),
        # one token
        (1, H, H, "", 2 * H * H),
    ]
    # what the last layer made, and what GELU reads
    assert block.activations.none.sequence == 2 * WIDTH + NORM_KEPT - WIDTH
    assert block.activations.none.replicated == WIDTH


@pytest.mark.parametrize(
    ("kernels", "split"), [(Kernels.EAGER, Split.REPLICATED), (Kernels.FUSED, Split.VOCABULARY)]
)
def test_berts_table_is_whole_on_tp_ranks_but_where_stacks_fuse(kernels: Kernels, split: Split) -> None:
    of = setting(kernels, transform_head=True, tied=True)
    assert {table(of).split, *(g.split for g in head(of).parameters[2:])} == {split}
    assert table(setting(kernels)).split is Split.VOCABULARY


def test_patches_are_projected_by_one_convolution() -> None:
    # nine patches and the class token
    image = Image(size=9, patch=3, channels=2, classes=5)
    block = patches(setting(image=image))
    assert (block.name, block.repeat, block.unit) == ("patches", 1, False)
    inputs = 2 * 3 * 3
    assert block.parameters == (Parameters(trainable=(inputs + 1) * H + (1 + T) * H),)
    assert products(block) == [(9, H, inputs, "", 2 * 9 * H * inputs)]
    assert block.operators[0].bytes == 0
    # the script's images in fp32 beside a copy of them
    cast = patches(replace(setting(image=image), autocast=True))
    assert block.activations.none == cast.activations.none == Saved(replicated=(2 + 4) * inputs * 9)
    assert (block.working, cast.working) == (Saved(sequence=2 * WIDTH), Saved(sequence=4 * WIDTH))


def test_a_classifier_reads_one_token() -> None:
    image = Image(size=9, patch=3, channels=2, classes=5)
    block = classifier(setting(image=image))
    assert (block.name, block.repeat, block.unit) == ("head", 1, False)
    assert block.parameters == (NORM, Parameters(trainable=H * 5 + 5))
    assert products(block) == [(1, 5, H, "", 2 * 5 * H)]
    assert block.activations.none == Saved(sequence=NORM_KEPT, replicated=2 * (H + 5))
    # a norm of a stream in fp32, of which one token is copied
    cast = classifier(replace(setting(image=image), autocast=True)).activations.none
    assert cast == Saved(sequence=(2 * 4 * H + 4) * T, replicated=2 * (H + 5))


@pytest.mark.parametrize(("kernels", "kept"), [(Kernels.EAGER, 160), (Kernels.COMPILED, 0)])
def test_a_spectrogram_passes_two_convolutions(kernels: Kernels, kept: int) -> None:
    # the second convolution strides by two
    audio = Audio(channels=7, frames=2 * T)
    block = spectrogram(setting(kernels, audio=audio))
    assert (block.name, block.repeat, block.unit) == ("spectrogram", 1, False)
    first, second = (3 * 7 + 1) * H, (3 * H + 1) * H
    assert block.parameters == (Parameters(trainable=first + second, frozen=T * H),)
    assert products(block) == [
        (20, H, 21, "", 2 * 20 * H * 21),
        (T, H, 3 * H, "", 2 * T * H * 3 * H),
    ]
    # the GELU of each reads and writes; the positions are added
    outputs = H * 20 + H * T
    assert block.operators[-1].bytes == 2 * (2 * outputs + 2 * H * T)
    assert block.activations.none == Saved(replicated=(2 + 4) * 7 * 20 + 2 * (outputs + kept))
    assert block.working == Saved(replicated=2 * 2 * H * 20)
