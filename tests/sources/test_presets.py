from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parastrat.errors import ModelError
from parastrat.model import Family, ModelSpec, OperatorKind
from parastrat.plan import Recompute
from parastrat.profiles import model_names, model_table, profiles_root
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Precision

FIRST_DOZEN = {
    *("gpt2", "gpt2-xl", "gpt3-175b", "megatron-1t", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"),
    *("mixtral-8x7b", "deepseek-v3", "bert-large", "t5-3b", "vit-l-16", "resnet-50"),
}


def spec(name: str, length: int | None = 512, kernels: Kernels = Kernels.EAGER) -> ModelSpec:
    source = load_source(name)
    assert source is not None
    return source.at(length if source.has_tokens else None, Precision.BF16_MIXED, kernels)


def test_the_first_dozen_is_there() -> None:
    assert set(model_names()) >= FIRST_DOZEN


@pytest.mark.parametrize("name", model_names())
def test_parameters_are_the_published_ones(name: str) -> None:
    path = profiles_root() / "models" / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    assert spec(name).parameters == pytest.approx(table["published_parameters"], rel=0.005)
    assert "https://" in table["published_source"]
    assert table["source"]


@pytest.mark.parametrize("name", model_names())
def test_blocks_hold_what_the_model_counts(name: str) -> None:
    model = spec(name)
    frozen = sum(group.frozen * block.repeat for block in model.blocks for group in block.parameters)
    assert model.trainable_parameters + frozen == model.parameters
    assert sum(block.repeat for block in model.blocks if block.unit) == model.layers


@pytest.mark.parametrize("name", ["gpt2", "resnet-50"])
def test_the_same_model_is_the_same_object(name: str) -> None:
    """What is computed of a model is kept with the object, over all jobs of a process."""
    assert spec(name) is spec(name)
    assert spec(name) is not spec(name, kernels=Kernels.FUSED)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-405b", "gpt3-175b"])
def test_flops_are_six_n_and_attention(name: str) -> None:
    length = 2048
    model = spec(name, length)
    table = model.blocks[0].parameter_count
    # the look-up multiplies nothing; a tied table still makes the logits
    weights = model.parameters - (0 if model.blocks[0].parameters[0].tie_group else table)
    attention = 2 * model.layers * length * (model.hidden or 0)
    assert model.flops / length == pytest.approx(2 * weights + attention, rel=0.01)


def test_one_token_uses_the_published_share_of_a_mixture() -> None:
    # 12.9B of 46.7B: arXiv:2401.04088, section 1;  37B of 671B: arXiv:2412.19437, abstract
    assert spec("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert spec("deepseek-v3").active_parameters == pytest.approx(37e9, rel=0.03)


@pytest.mark.parametrize(("name", "times"), [("llama-4-scout", 16), ("llama-4-maverick", 128)])
def test_of_experts_on_every_token_those_count_that_were_routed_to(name: str, times: int) -> None:
    everywhere, routed = spec(name), spec(name, kernels=Kernels.COMPILED)
    grouped = [
        [each for block in model.blocks for each in block.operators if each.kind.value == "grouped_matmul"]
        for model in (everywhere, routed)
    ]
    assert [each.useful * each.flops for each in grouped[0]] == [each.flops for each in grouped[1]]
    assert {each.useful for each in grouped[0]} == {1 / times}
    assert any(f"all {times} experts, as in transformers" in caveat for caveat in everywhere.caveats)
    assert any(f"1 of {times} experts, as in torchtitan" in caveat for caveat in routed.caveats)


def test_resnet_50_multiplies_as_published() -> None:
    # 4.09 G multiply-accumulates: torchvision's model page
    model = spec("resnet-50")
    products = sum(
        operator.flops * operator.count * block.repeat
        for block in model.blocks
        for operator in block.operators
        if operator.kind in (OperatorKind.CONVOLUTION, OperatorKind.MATMUL)
    )
    assert products / 2 == pytest.approx(4.09e9, rel=0.01)
    assert model.family is Family.CONVOLUTIONAL


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("kernels", list(Kernels))
def test_recomputing_more_keeps_less(name: str, kernels: Kernels) -> None:
    blocks = spec(name, kernels=kernels).blocks
    # a model also keeps the masks that its blocks are given again
    for several in (*([block] for block in blocks if block.unit), blocks):
        kept = [
            sum(block.repeat * block.activations.under(policy).total for block in several)
            for policy in Recompute
        ]
        assert kept == sorted(kept, reverse=True)


@settings(max_examples=20)
@given(st.integers(4, 12))
def test_a_longer_sequence_keeps_and_computes_more(power: int) -> None:
    shorter, longer = spec("llama-3.1-8b", 2**power), spec("llama-3.1-8b", 2 ** (power + 1))
    assert longer.flops > 2 * shorter.flops
    for one, other in zip(shorter.blocks, longer.blocks, strict=True):
        assert other.activations.none.total == pytest.approx(2 * one.activations.none.total)


def test_a_fused_gpt_layer_keeps_what_megatron_publishes() -> None:
    # 34 s b h, of which 2 s b h are dropout's byte masks: arXiv:2205.05198, equation 2 without scores
    model = spec("gpt3-175b", 2048, Kernels.FUSED)
    layer = model.blocks[1]
    masks = 2
    statistics = 4 * 96 * 2048 + 2 * 8 * 2048
    expected = (34 - masks) * 2048 * 12288 + statistics
    assert layer.activations.none.total == pytest.approx(expected)


def test_an_unknown_name_answers_with_the_nearest() -> None:
    with pytest.raises(ModelError) as caught:
        load_source("llama-3.1-80b")
    assert "llama-3.1-8b" in caught.value.hint


def test_images_take_no_sequence() -> None:
    source = load_source("resnet-50")
    assert source is not None
    with pytest.raises(ModelError, match="images"):
        source.at(128, Precision.FP32, Kernels.EAGER)


@pytest.mark.parametrize("name", ["125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b"])
def test_batches_of_gpt3_are_shared_by_many_devices(name: str) -> None:
    training = (model_table(f"gpt3-{name}") or {})["training"]
    # 0.5M, 1M and 2M tokens had been cut to 244, 488 and 977 contexts, which next to no machine shares
    assert training["global_batch_size"] % 256 == 0
    tokens = float(training["source"].partition(": ")[2].partition("M tokens")[0]) * 1e6
    assert abs(training["global_batch_size"] * training["sequence_length"] / tokens - 1) < 0.05
