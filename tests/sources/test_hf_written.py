"""Architectures as configs, and the configs read again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from parastrat.errors import ModelError
from parastrat.profiles import model_names
from parastrat.sources import load_source
from parastrat.sources.architecture import Architecture
from parastrat.sources.hf_config import load_config
from parastrat.sources.hf_written import config_of
from parastrat.sources.presets import TransformerSource

PRESETS = [name for name in model_names() if getattr(load_source(name), "model_type", None)]


def preset(name: str) -> tuple[str, Architecture]:
    source = load_source(name)
    assert isinstance(source, TransformerSource)
    assert source.model_type is not None
    return source.model_type, source.architecture


@pytest.mark.parametrize("name", PRESETS)
def test_a_presets_config_is_read_as_the_preset(name: str, tmp_path: Path) -> None:
    kind, architecture = preset(name)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, **config_of(kind, architecture)}), encoding="utf-8")
    read = load_config(name, path)
    assert isinstance(read, TransformerSource)
    # what a config names is an activation, and which layers see near keys may stand in a list
    said = {"name": "", "source": "", "composite_activation": False, "rectified": False, "window": None}
    said["max_sequence_length"] = None
    assert replace(read.architecture, **said) == replace(architecture, **said)


def test_fields_have_the_familys_own_names() -> None:
    table = config_of(*preset("gpt2"))
    assert (table["n_embd"], table["n_layer"], table["n_inner"]) == (768, 12, 3072)
    assert table["activation_function"] == "gelu_new"
    assert table["resid_pdrop"] > 0
    assert "hidden_size" not in table
    assert config_of(*preset("gpt3-1.3b"))["resid_pdrop"] == 0


def test_products_are_written_as_factors() -> None:
    table = config_of(*preset("deepseek-v2-lite"))
    assert (table["n_shared_experts"], table["moe_intermediate_size"]) == (2, 1408)
    assert table["q_lora_rank"] is None


def test_a_form_that_a_family_cannot_say_is_refused() -> None:
    _, architecture = preset("qwen2.5-7b")
    with pytest.raises(ModelError, match=r"no config of mistral says qwen2\.5-7b"):
        config_of("mistral", architecture)
    with pytest.raises(ModelError, match="no family with a closed form"):
        config_of("nothing", architecture)
