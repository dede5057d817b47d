"""The repeated blocks of many architectures."""

from __future__ import annotations

import copy

import pytest
import torch
from runtime.models import Block, plan
from runtime.ranks import on_ranks
from torch import nn

import parastrat
from parastrat.runtime.blocks import called_units, parameter_count, repeated_blocks, stacked_blocks


class Layer(nn.Module):
    def __init__(self, width: int, inner: int | None = None) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner or 4 * width)
        self.down = nn.Linear(inner or 4 * width, width)


class Expert(Layer):
    pass


class TextLayer(Layer):
    pass


class WideLayer(Layer):
    pass


class MixtureLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Linear(width, width)
        self.experts = nn.ModuleList(Expert(width) for _ in range(8))


def model(**parts: nn.Module) -> nn.Module:
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


def test_finds_the_layers_of_a_list() -> None:
    found = repeated_blocks(
        model(embed=nn.Embedding(9, 4), layers=nn.ModuleList(Layer(4) for _ in range(3)))
    )
    assert found.containers == ("layers",)
    assert found.names == ("layers.0", "layers.1", "layers.2")
    assert found.count == 3


def test_finds_the_layers_of_a_dictionary() -> None:
    layers = nn.ModuleDict({str(index): Layer(4) for index in range(3)})
    assert repeated_blocks(model(layers=layers)).count == 3


def test_takes_layers_of_several_kinds_from_one_list() -> None:
    layers = nn.ModuleList([Layer(4), MixtureLayer(4), Layer(4), Layer(4, 8)])
    assert repeated_blocks(model(layers=layers)).count == 4


def test_leaves_embedding_and_head_of_a_sequential_outside() -> None:
    module = nn.Sequential(
        nn.Embedding(9, 4), Layer(4), Layer(4), nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 9))
    )
    assert repeated_blocks(module).names == ("1", "2")


def test_experts_inside_a_layer_are_not_blocks() -> None:
    found = repeated_blocks(model(layers=nn.ModuleList(MixtureLayer(4) for _ in range(2))))
    assert found.names == ("layers.0", "layers.1")


class Routed(nn.ModuleDict):
    """As SwitchTransformersExperts."""


class Experts(Routed):
    """Known by its class."""


def test_experts_are_no_blocks_where_no_layer_repeats() -> None:
    """Ranks whose tokens choose other experts would gather other weights, and wait for ever."""
    one_mixture = nn.ModuleList([Layer(4), MixtureLayer(4)])
    assert repeated_blocks(model(embed=nn.Embedding(9, 4), layers=one_mixture)).names == ()
    deep = nn.ModuleList(nn.ModuleList(Layer(4) for _ in range(2)) for _ in range(2))
    assert repeated_blocks(model(experts=deep)).names == ()
    assert repeated_blocks(model(parts=Experts({"a": Layer(4), "b": Layer(4)}))).names == ()
    assert repeated_blocks(model(parts=Routed({"a": Layer(4), "b": Layer(4)}))).count == 2


def test_takes_both_stacks_of_an_encoder_decoder() -> None:
    found = repeated_blocks(
        model(
            encoder=model(layers=nn.ModuleList(Layer(4) for _ in range(2))),
            decoder=model(layers=nn.ModuleList(MixtureLayer(4) for _ in range(3))),
        )
    )
    assert found.containers == ("encoder.layers", "decoder.layers")
    assert found.count == 5


def test_small_stacks_stay_outside() -> None:
    found = repeated_blocks(
        model(
            layers=nn.ModuleList(Layer(64) for _ in range(4)),
            adapters=nn.ModuleList(MixtureLayer(1) for _ in range(2)),
        )
    )
    assert found.containers == ("layers",)


def test_descends_into_stages_of_different_widths() -> None:
    stages = nn.ModuleList(
        model(blocks=nn.ModuleList(Layer(width) for _ in range(2))) for width in (4, 8, 16)
    )
    assert repeated_blocks(model(stages=stages)).names == tuple(
        f"stages.{stage}.blocks.{block}" for stage in range(3) for block in range(2)
    )


def test_takes_every_residual_block_of_a_cnn() -> None:
    widths = ((4, 4), (4, 8), (8, 16))
    stages = {
        f"layer{index}": nn.Sequential(*(Layer(a if first == 0 else b, b) for first in range(3)))
        for index, (a, b) in enumerate(widths)
    }
    assert repeated_blocks(model(**stages, head=nn.Linear(16, 2))).count == 9


def test_single_layers_count_only_where_nothing_else_repeats() -> None:
    row = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert repeated_blocks(row).names == ("0", "2")
    found = repeated_blocks(model(row=row, layers=nn.ModuleList(Layer(1) for _ in range(2))))
    assert found.containers == ("layers",)


def test_nothing_repeats_in_a_single_layer() -> None:
    assert repeated_blocks(nn.Linear(4, 4)).count == 0


def test_hints_of_hugging_face_decide() -> None:
    """Two equal stages look like blocks; the hint names the layers inside."""
    stages = nn.ModuleList(model(blocks=nn.ModuleList(Layer(4) for _ in range(3))) for _ in range(2))
    module = model(stages=stages)
    assert repeated_blocks(module).count == 2
    module._no_split_modules = ["Layer", "Absent"]  # type: ignore[assignment]
    assert repeated_blocks(module).count == 6


def test_tied_parameters_count_once() -> None:
    embed, head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
    head.weight = embed.weight
    assert parameter_count(model(embed=embed, head=head)) == 36


@pytest.mark.parametrize(
    ("kind", "count", "overrides"),
    [
        ("llama", 3, {"num_hidden_layers": 3}),
        ("gpt2", 3, {"n_layer": 3, "n_embd": 32, "n_head": 2}),
        ("bert", 3, {"num_hidden_layers": 3}),
        ("vit", 3, {"num_hidden_layers": 3}),
        ("mixtral", 2, {"num_hidden_layers": 2, "num_local_experts": 4, "num_key_value_heads": 2}),
        ("t5", 5, {"num_layers": 2, "num_decoder_layers": 3, "d_model": 32, "d_ff": 64, "d_kv": 16}),
        ("resnet", 16, {}),
        ("swin", 12, {}),
        ("whisper", 5, {"encoder_layers": 2, "decoder_layers": 3}),
    ],
)
def test_counts_the_layers_of_hugging_face_models(kind: str, count: int, overrides: dict[str, int]) -> None:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "vocab_size": 99}
    if kind in {"gpt2", "t5", "resnet", "swin", "whisper"}:
        small = {}
    with torch.device("meta"):
        config = transformers.AutoConfig.for_model(kind, **small, **overrides)
        module = transformers.AutoModel.from_config(config)
    assert repeated_blocks(module).count == count


def test_stacks_are_small_ones_and_unequal_ones_too() -> None:
    module = model(
        images=nn.ModuleList(Layer(64) for _ in range(3)),
        text=model(layers=nn.ModuleList([TextLayer(4), TextLayer(4)])),
        hybrid=nn.Sequential(nn.Linear(4, 4), MixtureLayer(4), WideLayer(4)),
    )
    assert repeated_blocks(module).containers == ("images",)
    assert stacked_blocks(module).names == (
        *("images.0", "images.1", "images.2", "text.layers.0", "text.layers.1"),
        *("hybrid.1", "hybrid.2"),
    )


def test_stacks_around_repeated_blocks_are_none() -> None:
    towers = nn.ModuleDict(
        {
            "images": nn.Sequential(Layer(4), Layer(4)),
            "text": nn.Sequential(TextLayer(4), MixtureLayer(4)),
        }
    )
    assert stacked_blocks(model(towers=towers)).names == (
        *("towers.images.0", "towers.images.1", "towers.text.0", "towers.text.1"),
    )


def test_experts_are_no_stacks() -> None:
    module = model(first=Layer(4), experts=nn.ModuleList([Expert(4), Expert(4, 8)]))
    assert stacked_blocks(module).names == ()


class Holder(nn.Module):
    """Parts that its owner calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.block = nn.LayerNorm(8), Block()


class Stages(nn.Module):
    """Lists and blocks in one dict, and parts that nothing calls by their holder."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleDict(
            {"first": nn.ModuleList([Block(), Block()]), "second": Block(), "third": Block()}
        )
        self.held = nn.ModuleList([Holder(), Holder()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in (*self.stages["first"], self.stages["second"], self.stages["third"]):
            x = block(x)
        for held in self.held:
            x = held.block(held.norm(x))
        return x


def test_units_are_what_is_called() -> None:
    assert tuple(called_units(repeated_blocks(Stages()))) == (
        *(f"stages.{name}" for name in ("first.0", "first.1", "second", "third")),
        *(f"held.{index}.{name}" for index in range(2) for name in ("norm", "block")),
    )


def test_experts_that_a_holder_holds_are_no_units() -> None:
    held = nn.ModuleList(
        model(norm=nn.LayerNorm(4), experts=nn.ModuleList([Block(), Block()])) for _ in "ab"
    )
    assert tuple(called_units(repeated_blocks(model(layers=held)))) == ("layers.0.norm", "layers.1.norm")


@pytest.mark.slow
def test_lists_in_dicts_and_holders_are_sharded() -> None:
    assert max(on_ranks(2, _sharded)) < 1e-6


def _sharded() -> float:
    """By how much a step's gradients are off."""
    torch.manual_seed(0)
    plain, x = Stages(), torch.randn(4, 8)
    wrapped = parastrat.auto_parallelize(copy.deepcopy(plain), plan=plan(dp_shard=2))
    own = slice(2 * torch.distributed.get_rank(), 2 * torch.distributed.get_rank() + 2)
    plain(x).pow(2).mean().backward()
    wrapped(x[own]).pow(2).mean().backward()
    return max(
        float((other.grad.full_tensor() - one.grad).abs().max())
        for one, other in zip(plain.parameters(), wrapped.parameters(), strict=True)
    )
