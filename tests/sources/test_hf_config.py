from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from parastrat.errors import ModelError
from parastrat.model import ModelSpec
from parastrat.sources import load_source
from parastrat.stack import Kernels
from parastrat.workload import Precision

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}


def written(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


def spec(ref: str | Path) -> ModelSpec:
    source = load_source(str(ref))
    assert source is not None
    return source.at(8192, Precision.BF16_MIXED, Kernels.EAGER)


def test_a_config_is_the_preset_of_the_same_model(tmp_path: Path) -> None:
    written(tmp_path, LLAMA)
    assert spec(tmp_path).blocks == spec("llama-3.1-8b").blocks


def test_a_file_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA)
    assert spec(path).blocks == spec(tmp_path).blocks


def test_a_config_is_named_by_its_folder_or_by_a_name_of_its_own(tmp_path: Path) -> None:
    path = written(tmp_path, LLAMA)
    assert spec(path).name == spec(tmp_path).name == tmp_path.name
    assert spec(path.rename(tmp_path / "mine-8b.json")).name == "mine-8b"
    assert spec(written(tmp_path, LLAMA | {"_name_or_path": "me/mine"})).name == "me/mine"


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("LlamaConfig", {}),
        ("MistralConfig", {}),
        ("MixtralConfig", {"num_hidden_layers": 2}),
        ("Qwen2Config", {"tie_word_embeddings": True}),
        ("Qwen3Config", {"num_hidden_layers": 3}),
        ("Qwen3MoeConfig", {"num_hidden_layers": 2}),
        ("GPT2Config", {}),
    ],
)
def test_parameters_are_those_of_the_built_model(tmp_path: Path, kind: str, config: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    made = getattr(transformers, kind)(**config)
    made.save_pretrained(tmp_path)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(made)
    assert spec(tmp_path).parameters == sum(parameter.numel() for parameter in module.parameters())


def test_another_family_is_left_to_tracing(tmp_path: Path) -> None:
    written(tmp_path, {"model_type": "mamba"})
    assert load_source(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ({}, "model_type is missing"),
        ({key: value for key, value in LLAMA.items() if key != "hidden_size"}, "hidden_size is missing"),
        (LLAMA | {"hidden_size": "4096"}, "hidden_size is '4096', not an integer"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers is 0, not positive"),
        (LLAMA | {"vocab_size": -1}, "vocab_size is -1, not positive"),
        (LLAMA | {"num_attention_heads": 33}, "33 heads do not divide"),
        (LLAMA | {"num_key_value_heads": 5}, "5 key-value heads for 32 heads"),
        (LLAMA | {"tie_word_embeddings": "no"}, "not true or false"),
    ],
)
def test_a_wrong_config_is_named(tmp_path: Path, config: object, said: str) -> None:
    written(tmp_path, config)
    with pytest.raises(ModelError, match=said) as caught:
        load_source(str(tmp_path))
    assert caught.value.hint


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot read .*config\.json"):
        load_source(str(tmp_path / "config.json"))


def test_a_hub_name_is_read_from_the_cache_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="no config"):
        load_source("hf:meta-llama/Llama-3.1-8B")
    folder = tmp_path / "models--meta-llama--Llama-3.1-8B" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    written(folder, LLAMA)
    assert spec("hf:meta-llama/Llama-3.1-8B").blocks == spec("llama-3.1-8b").blocks


@pytest.mark.parametrize("ref", ["package.module:build", "folder/file.py:build"])
def test_a_callable_is_left_to_tracing(ref: str) -> None:
    assert load_source(ref) is None


def test_a_python_file_needs_its_callable() -> None:
    with pytest.raises(ModelError, match="names no callable"):
        load_source("train.py")
