"""Large models are proven on small ones of the same structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runtime.models import Gpt
from runtime.tensor_parallel.models import Perceptron, llama
from torch import nn

from parastrat.runtime.blocks import parameter_count
from parastrat.runtime.tensor_parallel.copies import Source, batch_for, small_copy
from parastrat.runtime.tensor_parallel.shrink import LARGE, shrunk


def large(**fields: int) -> nn.Module:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256, "head_dim": 128}
    counts = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 8}
    with torch.device("meta"):
        return llama(**(sizes | counts | fields))


def copied(module: nn.Module) -> nn.Module:
    return small_copy(Source(module=module, sample_inputs=None, record=None, device=torch.device("cpu")), 2)


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
