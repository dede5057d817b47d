"""Decoder families of Hugging Face transformers: what their config files do not say.

Each row was checked against the module that transformers builds, in every field of its config that changes
the number of parameters (tests/sources/test_hf_families.py). A family without a row has no closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from parastrat.sources.architecture import Architecture, Norm, QkNorm, Scores
from parastrat.sources.hf_fields import Config, Fields, Flag, Size, Table, UnknownFormError
from parastrat.sources.hf_hybrid import HYBRIDS
from parastrat.sources.hf_older import OLDER


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What the fields of a family's config do not say; a Llama where nothing stands."""

    #: fields of the architecture
    fields: Fields = field(default_factory=dict)
    #: fields of its experts; empty for none
    experts: Fields = field(default_factory=dict)
    #: fields of its latent attention; empty for none
    latent: Fields = field(default_factory=dict)
    #: config fields that must have this value
    requires: Mapping[str, object] = field(default_factory=dict)
    #: every so many-th layer sees the whole sequence where ``sliding_window`` is set; 0: none does
    full_every: int = 0
    #: the first of them is the first layer, not the last of so many
    full_first: bool = False
    #: fields that take arithmetic
    more: Callable[[Config], dict[str, Any]] | None = None
    #: reads the whole architecture, and writes the fields that say it, of families unlike a Llama
    whole: Callable[[Config], Architecture] | None = None
    written: Callable[[Architecture], dict[str, Any]] | None = None


_LAYER: Table = {"norm": Norm.LAYER}
_PLAIN: Table = {"gated": False}
_ATTENTION_BIAS: Table = {"qkv_bias": Flag("attention_bias"), "output_bias": Flag("attention_bias")}
_MLP_BIAS: Table = {"ffn_bias": Flag("mlp_bias")}
_INNER_BIAS: Table = {"qkv_bias": Flag("attention_bias")}
_ALL_BIASES: Table = _ATTENTION_BIAS | _MLP_BIAS
_USE_BIAS: Table = {name: Flag("use_bias") for name in ("qkv_bias", "output_bias", "ffn_bias")}
_QK_HEAD: Table = {"qk_norm": QkNorm.HEAD}
_QK_WIDTH: Table = {"qk_norm": QkNorm.WIDTH}
_SANDWICH: Table = {"layer_norms": 4}
_FP32_NORMS: Table = {"norm": Norm.RMS_FP32}
_SINKS: Table = {"sinks": True, "scores": Scores.SINKS}
_SCALED: Table = {"sinks": True, "scores": Scores.SCALED}
_CAPPED: Table = {"scores": Scores.CAPPED, "capped_logits": True}
#: rotary embedding of a part of each head
_PARTIAL: Table = {"heads_first": True}
_FUSED_GATE: Table = {"fused_gate": True}
_SQUARED: Table = {"squared": True}
_SHARED_NORM: Table = {"layer_norms": 1}
_NO_BIAS: Table = {"attention_bias": False}

#: tokens are weighed in fp32; so the router computes, and reads a copy of its input
_FP32_WEIGHTS: Table = {"fp32_weights": True}
_FP32_ROUTER: Table = _FP32_WEIGHTS | {"fp32_router": True}
_TOP_K: Table = {"top_k": Size("num_experts_per_tok")}
_LOCAL: Table = {"count": Size("num_local_experts"), **_TOP_K, "ffn": Size("intermediate_size")}
_NARROW: Table = {"ffn": Size("moe_intermediate_size")}
#: as DeepSeek's, its router computes in fp32
_ROUTED: Table = {"count": Size("n_routed_experts"), **_TOP_K, **_NARROW, **_FP32_ROUTER}
_NUMBERED: Table = {"count": Size("num_experts"), **_TOP_K, **_NARROW}
_DENSE_FIRST: Table = {"dense_layers": Size("first_k_dense_replace", least=0)}
_SHARED: Table = {"shared_ffn": Size("n_shared_experts", times="moe_intermediate_size")}
_LATENT: Table = {
    "q_rank": Size("q_lora_rank", default=0, least=0),
    "kv_rank": Size("kv_lora_rank"),
    "nope_dim": Size("qk_nope_head_dim"),
    "rope_dim": Size("qk_rope_head_dim"),
    "v_dim": Size("v_head_dim"),
}


def _square_output(config: Config) -> dict[str, Any]:
    """Return nothing: the output's matrix is as wide as the model, which the heads have to be."""
    if config.size("num_attention_heads") * config.size("head_dim") != config.size("hidden_size"):
        raise UnknownFormError(f"{config.path}: the heads together are not as wide as the model")
    return {}


def _capped_logits(config: Config) -> dict[str, Any]:
    return {"capped_logits": config.value("final_logit_softcapping") is not None}


_DENSE: Mapping[str, Form] = {
    "llama": Form(fields=_ALL_BIASES),
    "mistral": Form(),
    "ministral": Form(),
    "ministral3": Form(),
    "cwm": Form(fields=_MLP_BIAS, full_every=4, full_first=True),
    "granite": Form(fields=_ALL_BIASES),
    "granite_swa": Form(fields=_ALL_BIASES | _SCALED, full_every=4, full_first=True),
    "helium": Form(fields=_FP32_NORMS | _INNER_BIAS | _MLP_BIAS, more=_square_output),
    "internlm3": Form(fields=_ALL_BIASES),
    "iquestcoder": Form(fields=_ALL_BIASES),
    "hyperclovax": Form(fields=_ALL_BIASES | _SANDWICH, requires={"use_post_norm": True}),
    "ernie4_5": Form(fields=_USE_BIAS),
    "smollm3": Form(fields=_ALL_BIASES),
    "seed_oss": Form(fields=_INNER_BIAS | {"output_bias": Flag("attention_out_bias")} | _MLP_BIAS),
    "arcee": Form(fields=_PLAIN | _SQUARED | _ALL_BIASES),
    "jais2": Form(fields=_PLAIN | _SQUARED | _LAYER | _ALL_BIASES),
    "nemotron": Form(fields=_PLAIN | _SQUARED | _LAYER | _PARTIAL | _ALL_BIASES),
    "nanochat": Form(
        fields=_PLAIN | _SQUARED | _QK_HEAD | {"norm": Norm.BARE, "embedding_norm": True} | _ATTENTION_BIAS,
        more=_capped_logits,
    ),
    "gemma": Form(fields=_FP32_NORMS | _ATTENTION_BIAS),
    "gemma2": Form(fields=_FP32_NORMS | _ATTENTION_BIAS | _SANDWICH | _CAPPED, full_every=2),
    "gemma3_text": Form(fields=_FP32_NORMS | _ATTENTION_BIAS | _SANDWICH | _QK_HEAD, full_every=6),
    "vaultgemma": Form(fields=_FP32_NORMS | _ATTENTION_BIAS | _CAPPED, full_every=2),
    "qwen2": Form(fields={"qkv_bias": True}),
    "qwen3": Form(fields=_ATTENTION_BIAS | _QK_HEAD),
    "hunyuan_v1_dense": Form(fields=_ATTENTION_BIAS | _QK_HEAD),
    "exaone4": Form(fields=_QK_HEAD, full_every=4),
    "olmo": Form(fields={"norm": Norm.BARE} | _ATTENTION_BIAS),
    "olmo2": Form(fields=_FP32_NORMS | _ATTENTION_BIAS | _QK_WIDTH),
    "olmo3": Form(fields=_FP32_NORMS | _ATTENTION_BIAS | _QK_WIDTH, full_every=4),
    "glm": Form(fields=_INNER_BIAS | _PARTIAL | _FUSED_GATE),
    "glm4": Form(fields=_INNER_BIAS | _SANDWICH | _PARTIAL | _FUSED_GATE),
    "phi3": Form(fields={"fused_qkv": True, "values_in_projection": True} | _PARTIAL),
    "cohere": Form(
        fields={"norm": Norm.COMPOSITE} | _SHARED_NORM | _ATTENTION_BIAS, requires={"use_qk_norm": False}
    ),
    "cohere2": Form(fields={"norm": Norm.COMPOSITE} | _SHARED_NORM | _ATTENTION_BIAS, full_every=4),
    "stablelm": Form(
        fields=_LAYER | _PARTIAL | {"qkv_bias": Flag("use_qkv_bias")},
        requires={"use_parallel_residual": False, "qk_layernorm": False},
    ),
    "starcoder2": Form(fields=_PLAIN | _LAYER | _USE_BIAS),
    "minicpm3": Form(latent=_LATENT, requires=_NO_BIAS | {"mlp_bias": False}),
    "youtu": Form(latent=_LATENT, requires=_NO_BIAS),
}

_MIXED: Mapping[str, Form] = {
    "mixtral": Form(experts=_LOCAL | _FP32_WEIGHTS),
    "phimoe": Form(fields=_LAYER | _ATTENTION_BIAS | {"head_bias": Flag("lm_head_bias")}, experts=_LOCAL),
    "granitemoe": Form(fields=_ATTENTION_BIAS, experts=_LOCAL),
    "granitemoeshared": Form(
        fields=_ATTENTION_BIAS, experts=_LOCAL | {"shared_ffn": Size("shared_intermediate_size", least=0)}
    ),
    "granitemoe_swa": Form(
        fields=_ATTENTION_BIAS | _SCALED,
        experts=_LOCAL | {"shared_ffn": Size("shared_intermediate_size", least=0)},
        full_every=4,
        full_first=True,
    ),
    "gpt_oss": Form(
        fields=_FP32_NORMS | _ATTENTION_BIAS | _SINKS,
        experts=_LOCAL | {"router_bias": True, "bias": True, "composite_activation": True},
        full_every=2,
    ),
    "minimax_m2": Form(fields=_QK_WIDTH | _PARTIAL, experts=_LOCAL | _FP32_WEIGHTS),
    "olmoe": Form(
        fields=_ATTENTION_BIAS | _QK_WIDTH,
        experts={"count": Size("num_experts"), **_TOP_K, "ffn": Size("intermediate_size")},
        # its norms are as wide as the model
        requires={"head_dim": None},
    ),
    "flex_olmo": Form(
        fields=_FP32_NORMS | _ATTENTION_BIAS | _QK_WIDTH,
        experts={"count": Size("num_experts"), **_TOP_K, "ffn": Size("intermediate_size")},
    ),
    "qwen2_moe": Form(
        fields={"qkv_bias": Flag("qkv_bias")},
        experts=_NUMBERED
        | {
            "shared_ffn": Size("shared_expert_intermediate_size"),
            "shared_gate": True,
            "period": Size("decoder_sparse_step"),
        },
        requires={"mlp_only_layers": []},
    ),
    "qwen3_moe": Form(
        fields=_ATTENTION_BIAS | _QK_HEAD,
        experts=_LOCAL | _NARROW | {"period": Size("decoder_sparse_step")},
        requires={"mlp_only_layers": []},
    ),
    "mellum": Form(
        fields=_ATTENTION_BIAS | _QK_HEAD,
        experts=_LOCAL | _NARROW,
        requires={"num_nextn_predict_layers": None},
    ),
    "kolibri1": Form(
        fields=_QK_HEAD | _SANDWICH,
        experts=_LOCAL | _NARROW | _FP32_ROUTER | {"shared_ffn": Size("shared_expert_intermediate_size")},
        full_every=5,
    ),
    "glm4_moe": Form(
        fields=_INNER_BIAS | _PARTIAL,
        experts=_ROUTED | _DENSE_FIRST | _SHARED,
        requires={"use_qk_norm": False},
    ),
    "solar_open": Form(fields=_INNER_BIAS, experts=_ROUTED | _SHARED),
    "dots1": Form(fields=_ATTENTION_BIAS | _QK_HEAD, experts=_ROUTED | _DENSE_FIRST | _SHARED),
    "deepseek_v2": Form(
        latent=_LATENT, experts=_ROUTED | _DENSE_FIRST | _SHARED, requires=_NO_BIAS | {"mlp_bias": False}
    ),
    "deepseek_v3": Form(latent=_LATENT, experts=_ROUTED | _DENSE_FIRST | _SHARED, requires=_NO_BIAS),
    "glm4_moe_lite": Form(
        latent=_LATENT, experts=_ROUTED | _SHARED | {"dense_layers": 1}, requires=_NO_BIAS
    ),
    "exaone_moe": Form(
        fields=_QK_HEAD,
        experts=_NUMBERED
        | _FP32_ROUTER
        | _DENSE_FIRST
        | {"shared_ffn": Size("num_shared_experts", times="moe_intermediate_size")},
        full_every=4,
    ),
    "hy_v3": Form(
        fields=_ATTENTION_BIAS | _MLP_BIAS | _QK_HEAD,
        experts=_NUMBERED
        | _FP32_ROUTER
        | {
            "shared_ffn": Size("num_shared_experts", times="moe_intermediate_size"),
            "dense_layers": 1,
        },
        requires={"mlp_bias": False},
    ),
    "hunyuan_v1_moe": Form(
        fields=_ATTENTION_BIAS | _QK_HEAD,
        experts={
            "count": Size("num_experts"),
            "top_k": Size("moe_topk"),
            "ffn": Size("intermediate_size"),
            "shared_ffn": Size("intermediate_size"),
            "shared_first": True,
        },
    ),
    "aria_text": Form(
        fields=_ATTENTION_BIAS,
        experts={
            "count": Size("moe_num_experts"),
            "top_k": Size("moe_topk"),
            "ffn": Size("intermediate_size"),
            "shared_ffn": Size("moe_num_shared_experts", times="intermediate_size"),
        },
        requires={"mlp_bias": False},
    ),
    "cohere2_moe": Form(
        fields={"norm": Norm.COMPOSITE} | _SHARED_NORM | _ATTENTION_BIAS,
        experts={
            "count": Size("num_experts"),
            **_TOP_K,
            "ffn": Size("intermediate_size"),
            "shared_ffn": Size("num_shared_experts", times="intermediate_size"),
        },
        full_every=4,
    ),
    "llama4_text": Form(
        fields=_ATTENTION_BIAS | {"ffn": Size("intermediate_size_mlp"), "own_positions": True},
        experts=_LOCAL
        | {
            "shared_ffn": Size("intermediate_size"),
            "period": Size("interleave_moe_layer_step"),
            "every_token": True,
        },
    ),
}

#: model_type -> its form
FORMS: Mapping[str, Form] = {
    **_DENSE,
    **_MIXED,
    **{
        kind: Form(fields=fields, requires=requires, more=more)
        for kind, (fields, requires, more) in OLDER.items()
    },
    **{kind: Form(whole=whole, written=written) for kind, (whole, written) in HYBRIDS.items()},
}
