"""Hugging Face ``config.json`` files of known families, read without transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parastrat.errors import ModelError
from parastrat.model import Family, ModelSource
from parastrat.sources.architecture import Architecture, Experts, Norm, QkNorm
from parastrat.sources.presets import TransformerSource


@dataclass(frozen=True, slots=True)
class Config:
    """A config's fields with errors that name the file and the field."""

    path: Path
    table: Mapping[str, Any]

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive integer field.

        Raises:
            ModelError: missing without a default, not an integer, zero or negative.
        """
        value = self.table.get(name)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self.path}: {name} is missing", hint=f"add {name} to the config")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(f"{self.path}: {name} is {value!r}, not an integer", hint="correct the config")
        if value <= 0:
            raise ModelError(f"{self.path}: {name} is {value}, not positive", hint="correct the config")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean field."""
        value = self.table.get(name, default)
        if not isinstance(value, bool):
            raise ModelError(
                f"{self.path}: {name} is {value!r}, not true or false", hint="correct the config"
            )
        return value

    def rate(self, *names: str) -> float:
        """Return the largest of some dropout probabilities; absent ones are 0."""
        values = [self.table.get(name, 0.0) or 0.0 for name in names]
        for name, value in zip(names, values, strict=True):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ModelError(
                    f"{self.path}: {name} is {value!r}, not a number", hint="correct the config"
                )
        return max(values, default=0.0)

    def head_dim(self, hidden: int, heads: int) -> int:
        """Return the width of a head, stated or hidden / heads.

        Raises:
            ModelError: not stated, and the heads do not divide the width.
        """
        if self.table.get("head_dim") is None and hidden % heads:
            raise ModelError(
                f"{self.path}: {heads} heads do not divide a width of {hidden}",
                hint="state head_dim, or correct num_attention_heads",
            )
        return self.size("head_dim", hidden // heads)


def load_config(ref: str, path: Path) -> ModelSource | None:
    """Return the model of a ``config.json`` or of the folder that holds one.

    Returns:
        None for a valid config of a family without a closed form.

    Raises:
        ModelError: missing, unreadable or malformed file, or a field that is missing or wrong.
    """
    file = path / "config.json" if path.is_dir() else path
    table = _read(file)
    kind = table.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{file}: model_type is missing", hint="name a Hugging Face config.json")
    reader = _FAMILIES.get(kind)
    if reader is None:
        return None
    return TransformerSource(ref=ref, architecture=reader(Config(file, table)))


def _read(file: Path) -> Mapping[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror}", hint="name a config.json") from error
    except UnicodeDecodeError as error:
        raise ModelError(f"{file} is not text", hint="name a config.json") from error
    try:
        table = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ModelError(f"{file} is not JSON{where}", hint="name a Hugging Face config.json") from error
    if not isinstance(table, dict):
        raise ModelError(f"{file} is not a JSON object", hint="name a Hugging Face config.json")
    return table


def _llama(config: Config, **differences: Any) -> Architecture:
    """Llama and its relatives: RMS norms, SwiGLU, rotary positions, grouped queries."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    bias = config.flag("attention_bias", default=False)
    mlp_bias = config.flag("mlp_bias", default=False)
    fields: dict[str, Any] = {
        "name": _name(config),
        "family": Family.DECODER,
        "layers": config.size("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.size("num_key_value_heads", heads),
        "head_dim": config.head_dim(hidden, heads),
        "ffn": config.size("intermediate_size"),
        "vocab": config.size("vocab_size"),
        "norm": Norm.RMS,
        "gated": True,
        "tied": config.flag("tie_word_embeddings", default=False),
        "qkv_bias": bias,
        "output_bias": bias,
        "ffn_bias": mlp_bias,
        "max_sequence_length": config.size("max_position_embeddings"),
        "source": str(config.path),
    }
    architecture = Architecture(**(fields | differences))
    if architecture.heads % architecture.kv_heads:
        raise ModelError(
            f"{config.path}: {architecture.kv_heads} key-value heads for {architecture.heads} heads",
            hint="correct num_key_value_heads",
        )
    return architecture


def _qwen2(config: Config) -> Architecture:
    return _llama(config, qkv_bias=True, output_bias=False)


def _qwen3(config: Config) -> Architecture:
    return _llama(config, qk_norm=QkNorm.HEAD)


def _mixtral(config: Config) -> Architecture:
    experts = Experts(
        count=config.size("num_local_experts"),
        top_k=config.size("num_experts_per_tok"),
        ffn=config.size("intermediate_size"),
    )
    return _llama(config, experts=experts)


def _qwen3_moe(config: Config) -> Architecture:
    if config.table.get("mlp_only_layers") or config.size("decoder_sparse_step", 1) != 1:
        raise ModelError(
            f"{config.path}: dense layers between expert layers have no closed form",
            hint="give a builder, path.py:callable, to be traced",
        )
    experts = Experts(
        # older files say num_experts
        count=config.size("num_local_experts", config.table.get("num_experts")),
        top_k=config.size("num_experts_per_tok"),
        ffn=config.size("moe_intermediate_size"),
    )
    return _llama(config, qk_norm=QkNorm.HEAD, experts=experts, ffn=config.size("moe_intermediate_size"))


def _gpt2(config: Config) -> Architecture:
    hidden, heads = config.size("n_embd"), config.size("n_head")
    activation = config.table.get("activation_function", "gelu_new")
    return Architecture(
        name=_name(config),
        family=Family.DECODER,
        layers=config.size("n_layer"),
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        head_dim=config.head_dim(hidden, heads),
        ffn=config.size("n_inner", 4 * hidden),
        vocab=config.size("vocab_size"),
        norm=Norm.LAYER,
        gated=False,
        tied=config.flag("tie_word_embeddings", default=True),
        qkv_bias=True,
        output_bias=True,
        ffn_bias=True,
        fused_qkv=True,
        composite_activation=activation == "gelu_new",
        positions=config.size("n_positions"),
        dropout=config.rate("resid_pdrop", "embd_pdrop") > 0,
        max_sequence_length=config.size("n_positions"),
        source=str(config.path),
    )


def _name(config: Config) -> str:
    stated = config.table.get("_name_or_path")
    return stated if isinstance(stated, str) and stated else config.path.resolve().parent.name


_FAMILIES: Mapping[str, Callable[[Config], Architecture]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
}
