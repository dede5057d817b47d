"""Heads of keys and values that are fewer than the ranks of tensor parallelism are computed by several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from runtime.ranks import on_ranks
from runtime.token_models import VOCABULARY, alone, calls_of, check, saved, spoiled, trained, wrapped
from torch import nn
from transformers import GemmaConfig, GemmaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from parastrat.plan import Shard
from parastrat.runtime.tensor_parallel.copied_heads import with_copied_heads
from parastrat.runtime.tensor_parallel.own_plan import own_layout
from parastrat.runtime.tensor_parallel.written import NotWrittenError, readings, written

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "head_dim": 8,
    "max_position_embeddings": 32,
    "use_cache": False,
}
WHOLE: dict[str, Any] = {"tp": 4, "shard": Shard.NONE}
ALL: dict[str, Any] = {**WHOLE, "sequence_parallel": True, "loss_parallel": True}


class Logits:
    """Lets a model of transformers return its logits alone, in sight of its own plan."""

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        of_transformers: Any = super()
        logits: torch.Tensor = of_transformers.forward(input_ids=input_ids).logits
        return logits


class Qwen3(Logits, Qwen3ForCausalLM):
    """Normalises the queries and keys of each head."""


class Gemma(Logits, GemmaForCausalLM):
    pass


def two_heads() -> nn.Module:
    return Qwen3(Qwen3Config(**SIZES, num_key_value_heads=2))


def one_head() -> nn.Module:
    return Gemma(GemmaConfig(**SIZES, num_key_value_heads=1))


MODELS: dict[str, Callable[[], nn.Module]] = {"two heads": two_heads, "one head": one_head}


def four_ranks(folder: str) -> dict[str, Any]:
    one, other = wrapped(two_heads, **ALL), wrapped(lambda: two_heads().apply(spoiled), **ALL)
    return {
        **{name: trained(build, **ALL) for name, build in MODELS.items()},
        "whole activations": trained(two_heads, **WHOLE),
        "calls": calls_of(one),
        "saved": saved(one, Path(folder), other),
    }


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return on_ranks(4, four_ranks, str(tmp_path_factory.mktemp("saved")))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MODELS, "whole activations"])
def test_models_train_as_in_one_process(name: str, four: list[dict[str, Any]]) -> None:
    check([rank[name] for rank in four], alone(MODELS.get(name, two_heads)))


@pytest.mark.slow
def test_all_of_attention_is_divided(four: list[dict[str, Any]]) -> None:
    calls = four[0]["calls"]
    assert "model.layers.*.self_attn.k_proj, model.layers.*.self_attn.v_proj" in calls
    assert "the 2 heads of model.layers.*.self_attn.{k_proj,v_proj} are each computed by 2 ranks" in calls
    assert "between them activations are divided along the sequence" in calls
    assert "whole on every tp rank" not in calls


@pytest.mark.slow
def test_checkpoints_are_whole(four: list[dict[str, Any]]) -> None:
    assert [rank["saved"] for rank in four] == [0.0] * 4


@pytest.mark.parametrize(("degree", "copied"), [(1, False), (2, False), (3, False), (4, True), (8, True)])
def test_heads_are_copied_to_more_ranks_alone(degree: int, copied: bool) -> None:
    module = two_heads()
    plan = own_layout(module)
    assert plan is not None
    parts = with_copied_heads(plan, module, degree).parts
    found = {name.rpartition(".")[2] for name, part in parts.items() if part.copied}
    assert found == ({"k_proj", "v_proj"} if copied else set())


def test_no_style_of_torch_says_it() -> None:
    module = two_heads()
    plan = own_layout(module)
    assert plan is not None
    given = readings(module, (torch.zeros(1, 4, dtype=torch.int64),))
    with pytest.raises(NotWrittenError, match=r"k_proj has 2 heads, each of which several ranks compute"):
        written(module, with_copied_heads(plan, module, 4), given)
