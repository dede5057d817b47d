"""Large models are proven on small ones of the same structure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runtime.models import Gpt
from runtime.tensor_parallel.models import Perceptron, llama
from torch import nn

from parastrat.errors import WrapError
from parastrat.runtime.blocks import parameter_count
from parastrat.runtime.chunked_loss import LossInChunks
from parastrat.runtime.tensor_parallel.bench import bench_of
from parastrat.runtime.tensor_parallel.copies import Source, small_copies
from parastrat.runtime.tensor_parallel.samples import batch_for
from parastrat.runtime.tensor_parallel.shrink import LARGE, shrunk
from parastrat.runtime.tensor_parallel.suggested import suggested_layout


def large(**fields: int) -> nn.Module:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "head_dim": 128}
    counts = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 8}
    with torch.device("meta"):
        return llama(**(sizes | counts | fields))


def copied(module: nn.Module) -> nn.Module:
    source = Source(module=module, sample_inputs=None, record=None, device=torch.device("cpu"))
    return next(small_copies(source, 2))


def test_heads_stay_and_features_shrink() -> None:
    small = copied(large())
    assert parameter_count(small) < LARGE / 10
    attention = small.get_submodule("model.layers.0.self_attn")
    assert attention.q_proj.out_features == 32 * 8
    assert attention.k_proj.out_features == 8 * 8
    assert all(parameter.device.type == "cpu" for parameter in small.parameters())


@pytest.mark.parametrize(("name", "size"), [("vocab_size", 50257), ("intermediate_size", 11009)])
def test_what_does_not_divide_does_not_divide_in_the_small_one(name: str, size: int) -> None:
    small = shrunk(large(**{name: size}), 2)
    assert small is not None
    assert getattr(small.config, name) % 2 == 1


def test_a_loss_in_chunks_is_put_around_the_small_one() -> None:
    small = shrunk(LossInChunks(large(), 8), 2)
    assert isinstance(small, LossInChunks)
    assert parameter_count(small) < LARGE / 10


def test_small_models_keep_their_sizes() -> None:
    assert copied(llama()).get_submodule("model.layers.0.mlp.up_proj").out_features == 48
    assert len(copied(llama(num_hidden_layers=5)).get_submodule("model.layers")) == 2


def test_models_without_a_config_are_not_built_anew() -> None:
    assert shrunk(Gpt(), 2) is None
    assert shrunk(Perceptron(), 2) is None


def test_values_beside_tensors_are_handed_on() -> None:
    model = Gpt()
    given = {"tokens": torch.arange(12).view(4, 3), "task": 1}
    source = Source(module=model, sample_inputs=given, record=None, device=torch.device("cpu"))
    batch = batch_for(source, model, 2)
    assert batch["task"] == 1
    assert batch["tokens"].shape == (2, 8)


@pytest.mark.parametrize("family", ["Falcon", "DeepseekV2", "DeepseekV3"])
def test_sizes_that_hang_on_others_fit_the_small_model(family: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 2}
    if family != "Falcon":
        dims = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "kv_lora_rank": 64}
        sizes |= {**dims, "q_lora_rank": 96, "intermediate_size": 1024, "moe_intermediate_size": 64}
        sizes |= {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
        sizes |= {"num_key_value_heads": 8, "first_k_dense_replace": 1, "vocab_size": 4096}
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**sizes)
    small = shrunk(getattr(transformers, f"{family}ForCausalLM")(config), 2)
    assert small is not None
    assert small(torch.zeros(2, 16, dtype=torch.int64)).logits.shape[:2] == (2, 16)


#: a mesh that is not asked for more than its size
TWO: Any = SimpleNamespace(size=lambda: 2)


def given(module: nn.Module, **inputs: torch.Tensor) -> Source:
    return Source(module=module, sample_inputs=inputs, record=None, device=torch.device("cpu"))


def test_the_ids_and_labels_of_a_large_model_fit_the_small_one() -> None:
    model = llama(hidden_size=512, vocab_size=50000)
    assert parameter_count(model) > LARGE
    ids = torch.arange(49_000, 49_032).view(2, 16)
    bench = bench_of(given(model, input_ids=ids, labels=ids.clone()), TWO)
    embedding: Any = bench.copy.get_submodule("model.embed_tokens")
    assert embedding.num_embeddings == 64
    assert torch.equal(bench.task.inputs["input_ids"], ids[:, :8] % 64)
    assert torch.equal(bench.task.inputs["labels"], ids[:, :8] % 64)


def test_labels_to_ignore_stay_so() -> None:
    labels = torch.full((2, 16), -100)
    labels[:, 3:] = 49_000
    model = llama(hidden_size=512, vocab_size=50000)
    bench = bench_of(given(model, input_ids=torch.arange(32).view(2, 16), labels=labels), TWO)
    assert bench.task.inputs["labels"][0].tolist() == [-100] * 3 + [49_000 % 64] * 5


def large_family(name: str) -> nn.Module:
    sizes: dict[str, Any] = {"hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 2}
    transformers: Any = pytest.importorskip("transformers")
    built: nn.Module
    if name == "Roberta":  # its padding id tells positions
        built = transformers.RobertaForMaskedLM(transformers.RobertaConfig(vocab_size=50000, **sizes))
        return built
    if name == "GPTJ":  # turns a part of each head
        config = transformers.GPTJConfig(n_embd=512, n_head=8, n_layer=2, rotary_dim=32)
        built = transformers.GPTJForCausalLM(config)
        return built
    kinds = ["sliding_attention", "full_attention"]  # with other sizes of heads
    sizes |= {"vocab_size": 50000, "layer_types": kinds, "head_dim": 64, "global_head_dim": 128}
    sizes |= {
        "num_key_value_heads": 4,
        "vocab_size_per_layer_input": 512,
        "hidden_size_per_layer_input": 16,
    }
    text = pytest.importorskip("transformers.models.gemma4")
    built: nn.Module = text.Gemma4ForCausalLM(text.Gemma4TextConfig(**sizes))
    return built


@pytest.mark.parametrize("name", ["Roberta", "GPTJ", "Gemma4"])
def test_families_with_rules_of_their_own_are_built_small_and_run(name: str) -> None:
    model = large_family(name)
    assert parameter_count(model) > LARGE
    bench = bench_of(given(model, input_ids=torch.arange(49_000, 49_032).view(2, 16)), TWO)
    assert parameter_count(bench.copy) < LARGE / 10
    if name == "Gemma4":
        layers: Any = bench.copy.get_submodule("model.layers")
        heads = {layer.self_attn.head_dim for layer in layers}
        assert heads == {8, 16}


def llava() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers")
    text = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8}
    seen = {"image_size": 64, "patch_size": 32, "hidden_size": 64, "num_hidden_layers": 3}
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text, num_key_value_heads=4, vocab_size=32064),
        vision_config=transformers.CLIPVisionConfig(**seen, num_attention_heads=4, intermediate_size=64),
        image_token_index=32000,
    )
    built: nn.Module = transformers.LlavaForConditionalGeneration(config)
    return built


def test_inputs_that_only_the_models_own_sizes_take_are_proven_on_these() -> None:
    """LLaVA counts its images' tokens, and takes the second of its vision tower's layers from the last."""
    model = llava()
    assert parameter_count(model) > LARGE
    ids = torch.arange(40).view(2, 20)
    ids[:, 3:7] = 32000
    bench = bench_of(given(model, input_ids=ids, pixel_values=torch.randn(2, 3, 64, 64)), TWO)
    copied: Any = bench.copy
    assert len(copied.model.language_model.layers) == 2
    assert copied.config.text_config.num_hidden_layers == 2
    assert copied.config.text_config.hidden_size == 512


def test_inputs_that_no_copy_takes_are_refused_with_what_the_model_raised() -> None:
    model = llama(hidden_size=512, vocab_size=50000)
    with pytest.raises(WrapError, match="raised") as raised:
        bench_of(given(model, input_ids=torch.randn(2, 8)), TWO)
    assert type(raised.value) is WrapError
    assert "that the forward takes on one device" in str(raised.value.hint)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + self.down(self.up(x).relu())
        return out


class Counting(nn.Module):
    """Takes its blocks by number, and says how many there are nowhere else."""

    def __init__(self, depth: int = 5) -> None:
        super().__init__()
        self.depth = depth
        self.blocks = nn.ModuleList(Pair() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in range(self.depth):
            x = self.blocks[place](x)
        return x


def test_forwards_that_count_their_blocks_find_none_missing() -> None:
    model = Counting()
    inputs = torch.randn(2, 8)
    source = Source(module=model, sample_inputs=inputs, record=None, device=torch.device("cpu"))
    blocks: Any = bench_of(source, TWO).copy.get_submodule("blocks")
    assert [blocks[place] is blocks[place % 2] for place in range(5)] == [True] * 5
    assert parameter_count(blocks) == 2 * parameter_count(model.blocks[0])
    assert suggested_layout(model, inputs).groups
