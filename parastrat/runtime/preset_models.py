"""MODEL as a builder: a callable, a Hugging Face config, or a preset that transformers can build."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.errors import ModelError
from parastrat.model import Family
from parastrat.runtime.building import Builder, load_builder
from parastrat.runtime.hf_models import config_builder
from parastrat.sources.architecture import Norm
from parastrat.sources.hub import HUB
from parastrat.sources.presets import TransformerSource, load_preset

if TYPE_CHECKING:
    from torch import nn

    from parastrat.sources.architecture import Architecture


def builder_of(ref: str) -> Builder:
    """Return what builds MODEL.

    Raises:
        ModelError: it is a preset of another form than Llama's, or transformers is missing.
    """
    if ":" in ref and not ref.startswith(HUB):
        return load_builder(ref)
    preset = None if ref.startswith(HUB) or Path(ref).exists() else load_preset(ref)
    if preset is None:
        return config_builder(ref)
    if not isinstance(preset, TransformerSource) or not _is_llama(preset.architecture):
        raise ModelError(
            f"{ref} is known by its sizes alone, and is no Llama that transformers builds from them",
            hint="name the model to build: --model path.py:callable, or a config.json",
        )
    if find_spec("transformers") is None:
        raise ModelError(f"{ref} is built by transformers", hint="pip install 'parastrat[hf]'")
    return Builder(ref=ref, build=lambda: llama(preset.architecture))


def _is_llama(a: Architecture) -> bool:
    """Return whether a decoder is Llama's in everything but its sizes."""
    special = (
        a.qkv_bias,
        a.output_bias,
        a.ffn_bias,
        a.fused_qkv,
        a.qk_norm,
        a.sinks,
        a.embedding_norm,
        a.head_bias,
        a.window,
        a.positions,
        a.latent,
        a.experts,
        a.dropout,
    )
    plain = a.norm is Norm.RMS and a.gated and a.final_norm and a.layer_norms == 2
    return a.family is Family.DECODER and plain and not any(special)


def llama(a: Architecture) -> nn.Module:
    """Return Hugging Face's Llama of these sizes."""
    import transformers  # noqa: PLC0415 - an extra

    config = transformers.LlamaConfig(
        hidden_size=a.hidden,
        intermediate_size=a.ffn,
        num_hidden_layers=a.layers,
        num_attention_heads=a.heads,
        num_key_value_heads=a.kv_heads,
        head_dim=a.head_dim,
        vocab_size=a.vocab,
        tie_word_embeddings=a.tied,
        max_position_embeddings=a.max_sequence_length or 2048,
        use_cache=False,
    )
    module: nn.Module = transformers.LlamaForCausalLM(config)
    return module
