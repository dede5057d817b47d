"""Presets against the modules that transformers builds on the meta device from the same sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from parastrat.profiles import model_names
from parastrat.runtime.preset_models import builder_of, built
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

#: beginnings of names of encoders -> config and model class
CLASSES = {
    "bert": ("BertConfig", "BertForPreTraining"),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM"),
    "t5": ("T5Config", "T5ForConditionalGeneration"),
    "whisper": ("WhisperConfig", "WhisperForConditionalGeneration"),
}
#: trained with a module for further tokens, which transformers leaves out
FURTHER = ("nemotron-3-super", "nemotron-3-ultra", "nemotron-3.5-lightning")
#: no module of transformers has their shape, or test_convnext.py and test_diffusion.py build it
WITHOUT = ("convnext", "dit", "grok", "resnet", "vit")
#: decoders, which their presets' families build
DECODERS = [name for name in model_names() if getattr(load_source(name), "model_type", None)]


def classes(name: str) -> tuple[str, str] | None:
    return next((found for start, found in CLASSES.items() if name.startswith(start)), None)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_counts_what_its_family_builds(name: str) -> None:
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    with torch.device("meta"):
        module = builder_of(name).build()
    ours = source.at(8, Precision.FP32, Kernels.EAGER).parameters
    assert ours == sum(parameter.numel() for parameter in module.parameters())


def config_fields(a: Architecture) -> dict[str, Any]:
    """Return an architecture in the words of configs; each class takes those that it knows."""
    fields: dict[str, Any] = {
        "hidden_size": a.hidden,
        "num_hidden_layers": a.layers,
        "num_layers": a.layers,
        "num_attention_heads": a.heads,
        "num_heads": a.heads,
        "d_kv": a.head_dim,
        "intermediate_size": a.ffn,
        "d_ff": a.ffn,
        "vocab_size": a.vocab,
        "tie_word_embeddings": a.tied,
        "max_position_embeddings": a.positions or 2048,
        "type_vocab_size": a.segments,
        "pad_token_id": 0,
        "d_model": a.hidden,
        "encoder_layers": a.encoder_layers,
        "decoder_layers": a.layers,
        "encoder_attention_heads": a.heads,
        "decoder_attention_heads": a.heads,
        "encoder_ffn_dim": a.ffn,
        "decoder_ffn_dim": a.ffn,
    }
    if a.audio:
        fields |= {"max_target_positions": a.positions, "num_mel_bins": a.audio.channels}
    return fields


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in model_names() if classes(name)])
def test_a_preset_counts_what_transformers_builds(name: str) -> None:
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    found = classes(name)
    assert found is not None
    config_class, model_class = (getattr(transformers, each) for each in found)
    known = {*config_class().to_dict()}
    names = getattr(config_class, "attribute_map", {})
    fields = {
        names.get(field, field): value
        for field, value in config_fields(source.architecture).items()
        if names.get(field, field) in known
    }
    with torch.device("meta"):
        module = model_class(config_class(**fields))
    ours = source.at(8, Precision.FP32, Kernels.EAGER).parameters
    assert ours == sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FURTHER)
def test_a_model_with_a_module_for_further_tokens_is_built_but_for_that(name: str) -> None:
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    without = replace(source.architecture, next_tokens=None)
    with torch.device("meta"):
        module = built("nemotron_h", without)
    ours = replace(source, architecture=without).at(8, Precision.FP32, Kernels.EAGER).parameters
    assert ours == sum(parameter.numel() for parameter in module.parameters())


def test_every_preset_is_built_or_known_to_have_no_module() -> None:
    known = {
        *DECODERS,
        *FURTHER,
        *(name for name in model_names() if classes(name) or name.startswith(WITHOUT)),
    }
    assert set(model_names()) == known


@pytest.mark.parametrize("name", ["deepseek-v3", "kimi-k2"])
def test_latent_attention_turns_what_it_has_of_positions(name: str) -> None:
    """Published configs state another width of a head than that of rotary tables."""
    preset = load_source(name)
    assert isinstance(preset, TransformerSource)
    assert preset.architecture.latent is not None
    with torch.device("meta"):
        model: Any = built(str(preset.model_type), replace(preset.architecture, layers=4))
        cosines, _ = model.model.rotary_emb(torch.zeros(1, 16, 8), torch.zeros(1, 16, dtype=torch.int64))
    assert cosines.shape[-1] == preset.architecture.latent.rope_dim
