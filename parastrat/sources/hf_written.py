"""An architecture as the config of a family of transformers, from which that builds the model.

What ``hf_families`` says of reading a config says how to write one. What is written is read again, and is
taken where the same architecture comes out.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.errors import ModelError
from parastrat.sources.hf_config import architecture_of, family_of
from parastrat.sources.hf_families import FORMS
from parastrat.sources.hf_fields import Config, Flag, Size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.sources.architecture import Architecture
    from parastrat.sources.hf_families import Form

#: in training, where a config has any
_DROPOUT = 0.1
#: rows of OPT's position table that its config does not count
_OFFSET = 2


def config_of(kind: str, a: Architecture) -> dict[str, Any]:
    """Return the fields of a config of a family, by the family's own names.

    Args:
        kind: the family's ``model_type``.
        a: a decoder.

    Raises:
        ModelError: no such family, or its configs cannot say this architecture.
    """
    form, family = FORMS.get(kind), family_of(kind)
    if form is None or family is None:
        raise ModelError(f"{kind} is no family with a closed form", hint="name its model_type")
    defaults: Mapping[str, Any] = family["defaults"]
    names: Mapping[str, str] = family["names"]
    own = form.written(a).items() if form.written else (*_sizes(a, defaults), *_formed(form, a))
    stated = {names.get(name, name): value for name, value in own}
    table = {name: value for name, value in stated.items() if name in defaults}
    read = architecture_of(form, Config(Path(a.name), table, defaults, names))
    if _compared(read) != _compared(a):
        raise ModelError(f"no config of {kind} says {a.name}", hint="name the model to build")
    return table


def _sizes(a: Architecture, defaults: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what families call alike, and what they read by arithmetic."""
    activation = "gelu_new" if a.composite_activation else "relu" if a.rectified else "gelu"
    yield from {
        "hidden_size": a.hidden,
        "num_hidden_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
        "max_position_embeddings": a.positions or a.max_sequence_length or 2048,
        "sliding_window": a.window.size if a.window else None,
        "attention_chunk_size": a.window.size if a.window else None,
        "activation_function": activation,
        # widths of the feed-forward
        "intermediate_size": a.ffn,
        "n_inner": a.ffn,
        "ffn_hidden_size": a.ffn,
        # Falcon's
        "num_kv_heads": a.kv_heads,
        "new_decoder_architecture": 1 < a.kv_heads < a.heads,
        "multi_query": a.kv_heads == 1,
        "num_ln_in_parallel_attn": a.layer_norms,
        "parallel_attn": True,
    }.items()
    if a.rectified:
        yield "max_position_embeddings", a.positions - _OFFSET
    for name in defaults:
        if "drop" in name:
            yield name, _DROPOUT if a.dropout else 0.0


def _formed(form: Form, a: Architecture) -> Iterator[tuple[str, Any]]:
    """Yield what the family's form reads of a config."""
    yield from form.requires.items()
    for part, fields in ((a, form.fields), (a.experts, form.experts), (a.latent, form.latent)):
        if part is None:
            continue
        named = {field: value for field, value in fields.items() if isinstance(value, Flag | Size)}
        plain = {
            value.name: getattr(part, field) for field, value in named.items() if _times(value) is None
        }
        yield from plain.items()
        for field, value in named.items():
            times = _times(value)
            if times is not None:
                yield value.name, getattr(part, field) // plain[times]
    if a.latent is not None and not a.latent.q_rank:
        yield "q_lora_rank", None


def _times(value: Flag | Size) -> str | None:
    """Return the field that a size multiplies with."""
    return value.times if isinstance(value, Size) else None


def _compared(a: Architecture) -> Architecture:
    """Return what a config says: neither names nor the activation, nor which layers see near keys alone."""
    return replace(
        a,
        name="",
        source="",
        composite_activation=False,
        rectified=False,
        window=None,
        max_sequence_length=None,
    )
