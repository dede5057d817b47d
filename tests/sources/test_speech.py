"""A speech encoder counted by hand: 24 frames of 5 bands, so 12 positions; 2 bytes an element."""

from __future__ import annotations

from dataclasses import replace

import pytest

from parastrat.model import Block, Family, ModelSpec, OperatorKind, Parameters
from parastrat.profiles import model_names, model_table
from parastrat.saved import Saved
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture, Audio, Norm
from parastrat.sources.transformer import transformer
from parastrat.stack import Kernels
from parastrat.workload import Precision

SMALL = Architecture(
    name="small",
    family=Family.ENCODER_DECODER,
    layers=3,
    encoder_layers=2,
    hidden=8,
    heads=2,
    kv_heads=2,
    head_dim=4,
    ffn=32,
    vocab=50,
    norm=Norm.LAYER,
    gated=False,
    tied=True,
    positions=16,
    audio=Audio(channels=5, frames=24),
)
#: positions of the encoder, and tokens of the decoder
HEARD, SPOKEN, H = 12, 7, 8


def model(kernels: Kernels = Kernels.EAGER) -> ModelSpec:
    return transformer(SMALL, SPOKEN, Precision.BF16_MIXED, kernels, ref="small")


def named(name: str, kernels: Kernels = Kernels.EAGER) -> Block:
    (found,) = [block for block in model(kernels).blocks if block.name == name]
    return found


def test_the_spectrogram_comes_before_the_encoder_and_tokens_behind_it() -> None:
    spec = model()
    assert [(block.name, block.repeat, block.unit) for block in spec.blocks] == [
        ("spectrogram", 1, False),
        ("encoder layer", 2, True),
        ("encoder output", 1, False),
        ("embedding", 1, False),
        ("decoder layer", 3, True),
        ("head", 1, False),
    ]
    assert (spec.sequence_length, spec.layers) == (SPOKEN, 5)
    assert spec.caveats == ("every sample is heard as 24 frames; the sequence is the decoder's",)


def test_two_convolutions_and_positions_that_do_not_learn() -> None:
    block = named("spectrogram")
    learned = (5 * 3 + 1) * H + (H * 3 + 1) * H
    assert block.parameters == (Parameters(trainable=learned, frozen=HEARD * H),)
    convolutions = [o for o in block.operators if o.kind is OperatorKind.CONVOLUTION]
    assert [(o.m, o.n, o.k) for o in convolutions] == [(24, H, 15), (HEARD, H, 24)]
    assert all(o.flops == 2 * o.m * o.n * o.k for o in convolutions)


@pytest.mark.parametrize(("kernels", "wide"), [(Kernels.EAGER, 2), (Kernels.COMPILED, 1)])
def test_what_the_convolutions_keep(kernels: Kernels, wide: int) -> None:
    # bands, and the loop's own in fp32; outputs of the first convolution, of its GELU, of the second one
    kept = Saved(replicated=(2 + 4) * 5 * 24 + 2 * (wide * H * 24 + H * HEARD))
    assert named("spectrogram", kernels).activations.none == kept
    assert named("spectrogram").working == Saved(replicated=2 * 2 * H * 24)


def test_each_stack_has_its_own_length() -> None:
    encoder, decoder = named("encoder layer"), named("decoder layer")
    core = [o.flops for o in decoder.operators if o.kind is OperatorKind.ATTENTION]
    assert [o.flops for o in encoder.operators if o.kind is OperatorKind.ATTENTION] == [4 * HEARD**2 * H]
    # masked over its own tokens, whole over what was heard
    assert core == [4 * SPOKEN**2 / 2 * H, 4 * SPOKEN * HEARD * H]
    assert encoder.boundary_bytes == named("encoder output").boundary_bytes == 2 * HEARD * H
    assert decoder.boundary_bytes == named("embedding").boundary_bytes == 2 * (HEARD + SPOKEN) * H


def test_outputs_that_lie_by_heads_are_copied() -> None:
    def kept(kernels: Kernels, *, heads_first: bool) -> float:
        a = replace(SMALL, heads_first=heads_first)
        spec = transformer(a, SPOKEN, Precision.BF16_MIXED, kernels, ref="small")
        return spec.blocks[4].activations.none.total

    for kernels, copies in ((Kernels.EAGER, 2), (Kernels.COMPILED, 2), (Kernels.FUSED, 0)):
        more = kept(kernels, heads_first=True) - kept(kernels, heads_first=False)
        assert more == copies * 2 * SPOKEN * H


def test_a_longer_text_is_not_heard_longer() -> None:
    source = load_source("whisper-tiny")
    assert source is not None
    short, long = (source.at(n, Precision.BF16_MIXED, Kernels.EAGER) for n in (16, 448))
    for place in range(3):
        assert short.blocks[place] == long.blocks[place]
    assert long.blocks[4].flops > short.blocks[4].flops


@pytest.mark.parametrize("name", [each for each in model_names() if each.startswith("whisper")])
def test_batches_of_speech_are_those_of_its_paper(name: str) -> None:
    table = (model_table(name) or {})["training"]
    assert table["global_batch_size"] == (1024 if "large" in name else 256)
    assert "arxiv.org/abs/2212.04356" in table["source"]
