"""What a script sees of a divided model is told to be a share of it."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from runtime.models import plan
from runtime.ranks import answers, on_ranks
from torch import nn

import parastrat

SAMPLE = {"input_ids": torch.arange(24).view(2, 12)}


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=61, num_hidden_layers=2, attn_implementation="eager", **sizes)
    )


def seen(hooked: str = "", **keywords: bool) -> list[str]:
    """Return what three forwards warn of."""
    model = parastrat.auto_parallelize(llama(), plan=plan(tp=2), sample_inputs=SAMPLE)
    if hooked:
        model.get_submodule(hooked).register_forward_hook(lambda *_: None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            model(**SAMPLE, **keywords)
    return [str(each.message) for each in caught if "sees what this rank has" in str(each.message)]


def everything() -> dict[str, Any]:
    return answers(
        {
            "nothing": seen,
            "hidden states": partial(seen, output_hidden_states=True),
            "attentions": partial(seen, output_attentions=True),
            "block": partial(seen, "model.layers.1.mlp"),
            "column": partial(seen, "model.layers.1.mlp.up_proj"),
            "row": partial(seen, "model.layers.0.self_attn.o_proj"),
        }
    )


@pytest.mark.slow
def test_shares_are_told_of_or_refused() -> None:
    for found in on_ranks(2, everything):
        assert found["nothing"] == found["hidden states"] == found["block"] == []
        assert "attentions of the output are of 2 of 4 heads" in found["attentions"]
        for name, layer in (("column", "1.mlp.up_proj"), ("row", "0.self_attn.o_proj")):
            (said,) = found[name]
            assert said.startswith(f"a hook on model.layers.{layer} sees what this rank has")
