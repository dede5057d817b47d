"""MODEL as a builder: a callable, a Hugging Face config, or a preset that transformers can build."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.errors import ModelError
from parastrat.model import Family
from parastrat.runtime.building import Builder, load_builder
from parastrat.runtime.hf_models import config_builder
from parastrat.sources.architecture import Norm, QkNorm
from parastrat.sources.hub import HUB
from parastrat.sources.presets import TransformerSource, load_preset

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from parastrat.sources.architecture import Architecture


def builder_of(ref: str) -> Builder:
    """Return what builds MODEL.

    Raises:
        ModelError: it is a preset of a form that is not built here, or transformers is missing.
    """
    if ":" in ref and not ref.startswith(HUB):
        return load_builder(ref)
    preset = None if ref.startswith(HUB) or Path(ref).exists() else load_preset(ref)
    if preset is None:
        return config_builder(ref)
    make = _maker(preset.architecture) if isinstance(preset, TransformerSource) else None
    if make is None:
        raise ModelError(
            f"{ref} is known by its sizes alone, and of no form that transformers builds from them here",
            hint="name the model to build: --model path.py:callable, or a config.json",
        )
    if find_spec("transformers") is None:
        raise ModelError(f"{ref} is built by transformers", hint="pip install 'parastrat[hf]'")
    return Builder(ref=ref, build=make)


def built(a: Architecture) -> nn.Module:
    """Return Hugging Face's model of these sizes.

    Raises:
        ValueError: it has a form that is not built here.
    """
    make = _maker(a)
    if make is None:
        raise ValueError(a.name)
    return make()


#: what a Llama does not have
_SPECIAL = (
    "qkv_bias",
    "output_bias",
    "ffn_bias",
    "fused_qkv",
    "qk_norm",
    "sinks",
    "embedding_norm",
    "head_bias",
    "window",
    "positions",
    "latent",
    "experts",
    "dropout",
)
#: decoders of Llama's form with something of their own, by what that is
_FORMS = {(): "Llama", ("qkv_bias",): "Qwen2", ("qk_norm",): "Qwen3"}
_GPT2 = ("qkv_bias", "output_bias", "ffn_bias", "fused_qkv", "positions", "dropout")


def _maker(a: Architecture) -> Callable[[], nn.Module] | None:
    """Return what makes a decoder of a form that transformers builds from sizes; None for others."""
    special = tuple(name for name in _SPECIAL if getattr(a, name))
    if a.family is not Family.DECODER or not a.final_norm or a.layer_norms != 2:
        return None
    if a.norm is Norm.RMS and a.gated and special in _FORMS and a.qk_norm is not QkNorm.WIDTH:
        return partial(_llama, _FORMS[special], a)
    if a.norm is Norm.LAYER and special == _GPT2 and a.tied and a.composite_activation:
        return partial(_gpt2, a)
    return None


def _llama(form: str, a: Architecture) -> nn.Module:
    return _made(
        form,
        hidden_size=a.hidden,
        intermediate_size=a.ffn,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocab,
        tie_word_embeddings=a.tied,
        max_position_embeddings=a.max_sequence_length or 2048,
    )


def _gpt2(a: Architecture) -> nn.Module:
    return _made(
        "GPT2",
        n_embd=a.hidden,
        n_inner=a.ffn,
        n_layer=a.layers,
        n_head=a.heads,
        vocab_size=a.vocab,
        n_positions=a.positions,
    )


def _made(form: str, **sizes: Any) -> nn.Module:
    import transformers  # noqa: PLC0415 - an extra

    config = getattr(transformers, f"{form}Config")(use_cache=False, **sizes)
    module: nn.Module = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return module
