"""Large models are proven on small ones of the same structure."""

from __future__ import annotations

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
