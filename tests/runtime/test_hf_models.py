"""Configs without a closed form, through the flags' own door."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parastrat.cli.facts import source_of
from parastrat.errors import ModelError
from parastrat.model import ModelSpec
from parastrat.runtime.tracing import hf_models
from parastrat.runtime.tracing.trace import TracedSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

BERT = {
    "model_type": "bert",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 101,
}
T5 = {
    "model_type": "t5",
    "d_model": 48,
    "d_kv": 12,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}


def spec(folder: Path, config: dict[str, Any], ref: str = "") -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    source = source_of(ref or str(folder))
    assert isinstance(source, TracedSource)
    return source.at(64, Precision.BF16_MIXED, Kernels.EAGER)


def test_the_config_names_its_class(tmp_path: Path) -> None:
    model = spec(tmp_path, BERT | {"architectures": ["BertForMaskedLM"]})
    built = transformers.BertForMaskedLM(transformers.BertConfig(**BERT))
    assert (model.name, model.layers) == ("BertForMaskedLM", 2)
    assert model.parameters == sum(parameter.numel() for parameter in built.parameters())


@pytest.mark.parametrize(
    ("config", "name"), [(T5, "T5ForConditionalGeneration"), (BERT, "BertLMHeadModel")], ids=["t5", "bert"]
)
def test_without_a_class_it_is_the_familys_language_model(
    tmp_path: Path, config: dict[str, Any], name: str
) -> None:
    assert spec(tmp_path, config).name == name


def test_the_hubs_cache_serves_what_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--someone--small" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    assert spec(folder, BERT, "hf:someone/small").layers == 2


def test_an_unknown_family_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="knows no family 'nonesuch'"):
        spec(tmp_path, {"model_type": "nonesuch"})


def test_without_transformers_the_message_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_models, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="transformers") as caught:
        spec(tmp_path, BERT)
    assert "parastrat[hf]" in caught.value.hint
