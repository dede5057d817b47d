"""Closed forms of decoder families beside traces of transformers' modules, in eager mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import drawn

from parastrat.model import ModelSpec
from parastrat.plan import Recompute
from parastrat.runtime.tracing.trace import traced_module
from parastrat.sources import load_source
from parastrat.sources.hf_families import FORMS
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

from sources.test_hf_families import CLASSES, CONFIG_MAPPING, small  # noqa: E402 - after the skip

pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = 256
#: large enough for what grows with tokens to be most of what is kept
LARGER = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 384),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 12),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "dff", "ffn_hidden_size", "n_inner"), 1056),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("v_head_dim", "qk_nope_head_dim", "head_dim"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 512),
    "vocab_size": 4096,
    "intermediate_size_mlp": 1184,
    "moe_intermediate_size": 224,
    "shared_expert_intermediate_size": 192,
    "shared_intermediate_size": 160,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
}
#: what a family needs beside, to be built so: each head of latent attention has keys of its own
LATENT = {"num_key_value_heads": 12}
MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("minicpm3", "youtu", "deepseek_v2", "glm4_moe_lite"), LATENT),
    "deepseek_v3": LATENT | {"n_group": 2, "topk_group": 1},
    "gptj": {"rotary_dim": 16},
    "codegen": {"rotary_dim": 16},
}
#: of test_hybrid.py; a layer norm that mixes formats; a table of positions in fp32, which are not short
APART = {"nemotron_h", "mamba2"}
IN_FP32_ALONE = {"openai-gpt", "xglm"}
#: of families whose layers count positions each in a way of their own, which no trace tells
OWN_POSITIONS = {"llama4_text"}
#: of a family and a policy, how much less or more the closed form has than the trace
KNOWN: dict[tuple[str, str], float] = {
    # one layer keeps the mask that others read
    ("olmo3", "full"): 0.08,
    # the first layer is given the mask: 14 % of what four keep that run again
    ("granite_swa", "full"): 0.15,
    ("granite_swa", "selective"): 0.03,
    ("granitemoe_swa", "full"): 0.15,
    # gate and up of the shared experts are one product, of which the policy keeps both
    ("granitemoe_swa", "selective"): 0.17,
    ("granitemoeshared", "selective"): 0.14,
    # each layer makes angles of its own, of 32 numbers a token beside 384
    ("ernie4_5", "none"): 0.016,
    ("ernie4_5", "attention"): 0.016,
    ("codegen", "none"): 0.016,
    ("codegen", "attention"): 0.016,
    ("llama4_text", "none"): 0.02,
    ("llama4_text", "attention"): 0.02,
    # the mask, and keys and values repeated for it, are made again in part
    ("falcon", "attention"): 0.21,
}


def config_of(kind: str) -> Any:
    """Return a config without dropout."""
    known = CONFIG_MAPPING[kind]().to_dict()
    table = small(kind)
    table |= {name: size for name, size in LARGER.items() if name in table} | MORE.get(kind, {})
    table |= {name: 0.0 for name, value in known.items() if "drop" in name and isinstance(value, float)}
    return CONFIG_MAPPING[kind](**{name: value for name, value in table.items() if name in known})


def both(kind: str, folder: Path, precision: Precision) -> tuple[ModelSpec, ModelSpec]:
    config = config_of(kind)
    whole = json.loads(config.to_json_string(use_diff=False)) | {"model_type": kind}
    (folder / "config.json").write_text(json.dumps(whole), encoding="utf-8")
    closed = load_source(str(folder))
    assert closed is not None
    with torch.device("meta"):
        module = getattr(transformers, CLASSES[kind])(config)
    traced = traced_module(module, ref=kind, divides=False)
    return tuple(each.at(TOKENS, precision, Kernels.EAGER) for each in (closed, traced))  # type: ignore[return-value]


def kept(spec: ModelSpec, policy: Recompute) -> float:
    """Return what all layers keep."""
    return sum(block.activations.under(policy).total * block.repeat for block in spec.blocks if block.unit)


def ends(spec: ModelSpec) -> float:
    return sum(block.activations.none.total for block in spec.blocks if not block.unit)


@pytest.mark.slow
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("kind", drawn(sorted(set(FORMS) - APART), 20))
def test_layers_and_ends_keep_what_traces_do(kind: str, precision: Precision, tmp_path: Path) -> None:
    if kind in IN_FP32_ALONE:
        precision = Precision.FP32
    closed, traced = both(kind, tmp_path, precision)
    for policy in Recompute:
        known = KNOWN.get((kind, policy.value), 0.012)
        assert kept(closed, policy) == pytest.approx(kept(traced, policy), rel=known), policy
    assert ends(closed) == pytest.approx(ends(traced), rel=0.02)
    flops = sum((block.flops + block.hidden_flops) * block.repeat for block in closed.blocks)
    assert flops == pytest.approx(traced.flops, rel=0.01)
    assert closed.divides_sequences == (traced.divides_sequences and kind not in OWN_POSITIONS)
