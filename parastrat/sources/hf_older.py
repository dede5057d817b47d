"""Decoder families from before Llama, whose configs each have names of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from parastrat.sources.architecture import Norm, QkNorm, Scores
from parastrat.sources.hf_fields import Config, Fields, Flag, Size, Table, UnknownFormError

#: fields of the architecture, config fields with the value that they must have, fields that take arithmetic
OlderForm: TypeAlias = tuple[Fields, Mapping[str, object], Callable[[Config], dict[str, Any]] | None]

_BIASES: Table = {"qkv_bias": True, "output_bias": True, "ffn_bias": True}
_GPT: Table = {"norm": Norm.LAYER, "gated": False}
_FUSED: Table = {"fused_qkv": True}
_SCORES: Table = {"scores": Scores.PLAIN}
#: OPT, BioGPT and their like keep two rows of the position table free
_OFFSET = 2
#: norms of a layer whose branches each have one
_TWO = 2


def _inner(config: Config, name: str = "n_inner") -> dict[str, Any]:
    """Return the feed-forward's width, four times the model's where it is null."""
    return {"ffn": config.size(name, 4 * config.size("hidden_size"))}


def _activation(config: Config, name: str = "activation_function") -> dict[str, Any]:
    function = config.value(name)
    return {"composite_activation": function == "gelu_new", "rectified": function == "relu"}


def _gpt2(config: Config) -> dict[str, Any]:
    dropout = config.rate("resid_pdrop", "embd_pdrop") > 0
    return {
        **_inner(config),
        **_activation(config),
        "positions": config.size("max_position_embeddings"),
        "dropout": dropout,
    }


def _gpt_bigcode(config: Config) -> dict[str, Any]:
    heads = config.size("num_attention_heads")
    return {**_gpt2(config), "kv_heads": 1 if config.flag("multi_query") else heads}


def _openai_gpt(config: Config) -> dict[str, Any]:
    function = config.value("afn")
    return {
        # its table of activations has GPT-2's GELU under that name
        "composite_activation": function == "gelu",
        "rectified": function == "relu",
        "ffn": 4 * config.size("hidden_size"),
        "positions": config.size("max_position_embeddings"),
        "dropout": config.rate("resid_pdrop", "embd_pdrop") > 0,
    }


def _ctrl(config: Config) -> dict[str, Any]:
    return {"dropout": config.rate("resid_pdrop", "embd_pdrop") > 0}


def _gptj(config: Config) -> dict[str, Any]:
    return {
        **_inner(config),
        **_activation(config),
        "dropout": config.rate("resid_pdrop", "embd_pdrop") > 0,
    }


def _codegen(config: Config) -> dict[str, Any]:
    # ``mp_num`` of CodeGenAttention, whatever the config says
    return {**_gptj(config), "head_groups": 4}


def _gpt_neo(config: Config) -> dict[str, Any]:
    return {
        **_inner(config, "intermediate_size"),
        **_activation(config),
        "positions": config.size("max_position_embeddings"),
        "dropout": config.rate("resid_dropout", "embed_dropout") > 0,
    }


def _bloom(config: Config) -> dict[str, Any]:
    return {"ffn": 4 * config.size("hidden_size"), "dropout": config.rate("hidden_dropout") > 0}


def _opt(config: Config) -> dict[str, Any]:
    hidden = config.size("hidden_size")
    if config.size("word_embed_proj_dim", hidden) != hidden:
        raise UnknownFormError(f"{config.path}: the embedding is narrower than the model")
    if config.flag("_remove_final_layer_norm"):
        raise UnknownFormError(f"{config.path}: the last norm is removed")
    return {
        **_activation(config),
        "positions": config.size("max_position_embeddings") + _OFFSET,
        "dropout": config.rate("dropout") > 0,
    }


def _biogpt(config: Config) -> dict[str, Any]:
    return {
        "positions": config.size("max_position_embeddings") + _OFFSET,
        "dropout": config.rate("hidden_dropout_prob") > 0,
    }


def _xglm(config: Config) -> dict[str, Any]:
    return {**_activation(config), "dropout": config.rate("dropout") > 0}


def _mpt(config: Config) -> dict[str, Any]:
    # expansion_ratio is a field that the module does not read
    return {"ffn": 4 * config.size("hidden_size"), "dropout": config.rate("resid_pdrop") > 0}


def _falcon(config: Config) -> dict[str, Any]:
    heads, new = config.size("num_attention_heads"), config.flag("new_decoder_architecture")
    grouped, one_head = config.size("num_kv_heads", heads), config.flag("multi_query")
    own = config.size("num_ln_in_parallel_attn", 2 if new else 1)
    return {
        "kv_heads": grouped if new else (1 if one_head else heads),
        "ffn": config.size("ffn_hidden_size", 4 * config.size("hidden_size")),
        # the two branches side by side share a norm, unless each is said to have its own
        "layer_norms": 1 if config.flag("parallel_attn") and own != _TWO else _TWO,
        "parallel": config.flag("parallel_attn"),
        "dropout": config.rate("hidden_dropout") > 0,
    }


def _phi(config: Config) -> dict[str, Any]:
    return {**_activation(config, "hidden_act"), "dropout": config.rate("resid_pdrop", "embd_pdrop") > 0}


def _gpt_neox(config: Config) -> dict[str, Any]:
    return {"dropout": config.rate("hidden_dropout") > 0}


def _persimmon(config: Config) -> dict[str, Any]:
    return {"qk_norm": QkNorm.HEAD if config.flag("qk_layernorm") else None}


#: model_type -> its form
OLDER: Mapping[str, OlderForm] = {
    "gpt2": (_GPT | _FUSED | _BIASES, {"add_cross_attention": False}, _gpt2),
    "gpt-sw3": (_GPT | _FUSED | _BIASES, {"add_cross_attention": False}, _gpt2),
    "gpt_bigcode": (_GPT | _FUSED | _BIASES, {"add_cross_attention": False}, _gpt_bigcode),
    "openai-gpt": (_GPT | _FUSED | _BIASES | _SCORES | {"final_norm": False}, {}, _openai_gpt),
    "ctrl": (_GPT | _BIASES | {"head_bias": True, "ffn": Size("dff"), "rectified": True}, {}, _ctrl),
    "gptj": (_GPT | {"ffn_bias": True, "layer_norms": 1, "head_bias": True}, {}, _gptj),
    "codegen": (
        _GPT | _FUSED | {"ffn_bias": True, "layer_norms": 1, "head_bias": True},
        {},
        _codegen,
    ),
    "gpt_neo": (_GPT | {"scores": Scores.FP32, "output_bias": True, "ffn_bias": True}, {}, _gpt_neo),
    "gpt_neox": (
        _GPT
        | _FUSED
        | {"ffn_bias": True, "parallel": Flag("use_parallel_residual")}
        | {"values_in_projection": True, "heads_first": True}
        | {name: Flag("attention_bias") for name in ("qkv_bias", "output_bias")},
        {},
        _gpt_neox,
    ),
    "bloom": (_GPT | _FUSED | _BIASES | _SCORES | {"embedding_norm": True}, {}, _bloom),
    "opt": (
        _GPT | {name: Flag("enable_bias") for name in _BIASES} | {"ffn": Size("ffn_dim")},
        {"do_layer_norm_before": True, "layer_norm_elementwise_affine": True},
        _opt,
    ),
    "biogpt": (_GPT | _BIASES, {}, _biogpt),
    "xglm": (
        _GPT | _BIASES | {"scores": Scores.CLAMPED, "ffn": Size("ffn_dim")},
        {"add_cross_attention": False},
        _xglm,
    ),
    "mpt": (
        {"norm": Norm.UNBIASED, "gated": False}
        | _FUSED
        | _SCORES
        | {"max_sequence_length": Size("max_seq_len")},
        {},
        _mpt,
    ),
    "falcon": (_GPT | _FUSED | {"masked": True} | {name: Flag("bias") for name in _BIASES}, {}, _falcon),
    "phi": (
        _GPT | _BIASES | {"layer_norms": 1, "head_bias": True, "heads_first": True},
        {"qk_layernorm": False},
        _phi,
    ),
    "persimmon": (
        _GPT | _FUSED | _BIASES | {"heads_first": True, "values_in_projection": True},
        {},
        _persimmon,
    ),
}
