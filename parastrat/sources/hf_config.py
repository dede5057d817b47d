"""Hugging Face ``config.json`` files of known families, read without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from parastrat.errors import ModelError
from parastrat.model import Family, ModelSource
from parastrat.profiles import profiles_root
from parastrat.sources.architecture import Architecture, Experts, LatentAttention, Norm
from parastrat.sources.hf_families import FORMS, Form
from parastrat.sources.hf_fields import Config, UnknownFormError, resolved
from parastrat.sources.presets import TransformerSource
from parastrat.sources.windows import Window

#: kinds of attention that differ in the keys that a query sees, and in nothing else
_ATTENTION_KINDS = {"full_attention", "sliding_attention", "chunked_attention"}


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
    form, family = FORMS.get(kind), family_of(kind)
    if form is None or family is None:
        return None
    if table.get("architectures") not in (None, [], [family["class"]]):
        return None
    config = Config(file, table, family["defaults"], family["names"])
    try:
        architecture = architecture_of(form, config)
    except UnknownFormError:
        return None
    return TransformerSource(ref=ref, architecture=architecture)


def family_of(kind: str) -> dict[str, Any] | None:
    """Return a family's class, defaults and names; None where the table has none."""
    table = json.loads((profiles_root() / "families.json").read_text(encoding="utf-8"))
    family: dict[str, Any] | None = table["families"].get(kind)
    return family


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
        hint = "name a Hugging Face config.json"
        if file.suffix == ".toml":
            hint += f"; what a plan file says is told by: parastrat explain {file}"
        if file.suffix == ".py":
            hint = f"name the function that builds the model: {file}:build"
        raise ModelError(f"{file} is not JSON{where}", hint=hint) from error
    if not isinstance(table, dict):
        raise ModelError(f"{file} is not a JSON object", hint="name a Hugging Face config.json")
    return table


def architecture_of(form: Form, config: Config) -> Architecture:
    """Return what a config of a known form says.

    Raises:
        ModelError: a field that is missing or wrong.
        UnknownFormError: a field that the closed form does not cover.
    """
    if form.whole is not None:
        return replace(form.whole(config), name=_name(config), source=str(config.path))
    for name, wanted in form.requires.items():
        config.require(name, wanted)
    fields = resolved(form.fields, config) | (form.more(config) if form.more else {})
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    layers = config.size("num_hidden_layers")
    shared: dict[str, Any] = {"kv_heads": heads, "norm": Norm.RMS, "gated": True}
    if "kv_heads" not in fields:
        shared["kv_heads"] = config.size("num_key_value_heads", heads)
    if "max_sequence_length" not in fields:
        length = config.value("max_position_embeddings")
        shared["max_sequence_length"] = None if length is None else config.size("max_position_embeddings")
    if form.experts:
        shared["experts"] = _experts(form, config, layers)
    if "ffn" not in fields:
        # a family whose layers all have experts may have no dense width
        shared["ffn"] = config.size("intermediate_size", shared["experts"].ffn if form.experts else None)
    if form.latent:
        shared["latent"] = LatentAttention(**resolved(form.latent, config))
    architecture = Architecture(
        **{
            "name": _name(config),
            "family": Family.DECODER,
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "head_dim": _head_dim(config, hidden, heads, latent=bool(form.latent)),
            "vocab": config.size("vocab_size"),
            "tied": config.flag("tie_word_embeddings"),
            "window": _window(form, config, layers),
            "source": str(config.path),
            **shared,
            **fields,
        }
    )
    if architecture.heads % architecture.kv_heads:
        raise ModelError(
            f"{config.path}: {architecture.kv_heads} key-value heads for {architecture.heads} heads",
            hint="correct num_key_value_heads",
        )
    return architecture


def _head_dim(config: Config, hidden: int, heads: int, *, latent: bool) -> int:
    """Return the width of a head, stated or hidden / heads.

    Raises:
        ModelError: not stated, and the heads do not divide the width.
        UnknownFormError: stated, by a family that may not read it.
    """
    stated = config.value("head_dim")
    if stated is None and hidden % heads and not latent:
        raise ModelError(
            f"{config.path}: {heads} heads do not divide a width of {hidden}",
            hint="state head_dim, or correct num_attention_heads",
        )
    if stated is None and not latent and config.table.get("head_dim") not in (None, hidden // heads):
        raise UnknownFormError(f"{config.path}: head_dim is no field of this family")
    return config.size("head_dim", hidden // heads)


def _experts(form: Form, config: Config, layers: int) -> Experts:
    """Return the experts; which layers have them may stand in a list.

    Raises:
        UnknownFormError: layers with and without experts in an order of their own.
    """
    fields = resolved(form.experts, config)
    kinds = config.value("mlp_layer_types")
    if isinstance(kinds, list):
        dense = kinds.count("dense")
        if kinds != ["dense"] * dense + ["sparse"] * (layers - dense):
            raise UnknownFormError(f"{config.path}: mlp_layer_types mixes dense layers and others")
        fields["dense_layers"] = dense
    return Experts(**fields)


def _window(form: Form, config: Config, layers: int) -> Window | None:
    """Return the layers that see only near keys."""
    kinds = config.value("layer_types")
    if isinstance(kinds, list):
        unknown = set(map(str, kinds)) - _ATTENTION_KINDS
        if unknown or len(kinds) != layers:
            raise UnknownFormError(f"{config.path}: layer_types has {', '.join(sorted(unknown))}")
    chunk = config.value("attention_chunk_size")
    size = config.value("sliding_window") if chunk is None else chunk
    if size is None or config.value("use_sliding_window") is False:
        return None
    if isinstance(kinds, list):
        whole = tuple(index for index, kind in enumerate(kinds) if kind == "full_attention")
    else:
        whole = _full_layers(form, layers)
    if len(whole) == layers:
        return None
    return Window(
        size=config.size("sliding_window" if chunk is None else "attention_chunk_size"),
        layers=layers - len(whole),
        chunked=chunk is not None,
        whole=whole,
    )


def _full_layers(form: Form, layers: int) -> tuple[int, ...]:
    if not form.full_every:
        return ()
    return tuple(range(0 if form.full_first else form.full_every - 1, layers, form.full_every))


def _name(config: Config) -> str:
    stated = config.table.get("_name_or_path")
    if isinstance(stated, str) and stated:
        return stated
    path = config.path.resolve()
    return path.parent.name if path.name == "config.json" else path.stem
