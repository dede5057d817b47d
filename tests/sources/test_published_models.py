"""Models as published tables of measured runs name them: each is a preset of the sizes stated there.

Layer-reduced proxies of these models, and position tables lengthened for a run, are not in the list.
"""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest

from parastrat.errors import ModelError
from parastrat.model import ModelSource
from parastrat.profiles import profiles_root
from parastrat.profiles.catalogue import ProfileKind, all_names, preset_meant, profile_names, why_left_out
from parastrat.sources import load_source
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

with (Path(__file__).parent / "published_models.csv").open(encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


def loaded(name: str) -> ModelSource:
    source = load_source(name)
    assert source is not None
    return source


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_a_published_name_is_its_preset(row: dict[str, str]) -> None:
    source = loaded(row["model"])
    assert source.ref == row["preset"]
    assert row["source"]
    if isinstance(source, TransformerSource):
        for field in ("layers", "hidden", "heads", "kv_heads", "vocab"):
            assert row[field] in ("", str(getattr(source.architecture, field))), field


@pytest.mark.parametrize("row", [row for row in ROWS if row["params_b"]], ids=lambda row: row["model"])
def test_a_published_name_has_the_published_parameters(row: dict[str, str]) -> None:
    source, stated = loaded(row["model"]), row["params_b"]
    model = source.at(2048 if source.has_tokens else None, Precision.BF16_MIXED, Kernels.EAGER)
    rounding = 0.5 * 10 ** -len(stated.partition(".")[2])
    assert abs(model.parameters / 1e9 - float(stated)) <= max(0.005 * float(stated), rounding)


def test_parameters_are_compared_or_told_apart() -> None:
    untold = {row["model"] for row in ROWS if not row["params_b"] and not row["apart"]}
    # sizes without a count
    assert untold == {"GPT (vTrain L12H1024)", "GPT (vTrain L24H2048)"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("Llama_3.1 8B", "llama-3.1-8b"),
        ("GPT-2", "gpt2"),
        ("gpt_2-XL", "gpt2-xl"),
        ("resnet50", "resnet-50"),
        ("DeepSeekV3", "deepseek-v3"),
        ("ViT-B/16", "vit-b-16"),
        ("DiT-XL/2", "dit-xl-2"),
        ("llama-38b", None),
        ("llama-31-8b", None),
        ("./llama-3-8b", None),
        ("aliases", None),
        ("", None),
    ],
)
def test_spelling_makes_no_difference_but_between_digits(written: str, meant: str | None) -> None:
    assert preset_meant(written) == meant


#: the other names of the same tables
LEFT_OUT = (
    "DeepSeekV3 (w/ MTP)",
    "DeepSeekV4 Flash",
    "Llama3 70b Finetuning LORA",
    "Llama3 8b Finetuning LORA",
)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_has_no_closed_form_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ModelError, match=r"is no preset: .*(closed form|adapters)") as caught:
        load_source(name)
    assert "config.json" in caught.value.hint


def test_reasons_are_told_of_no_preset() -> None:
    path = profiles_root() / "left_out.toml"
    names = tomllib.loads(path.read_text(encoding="utf-8"))
    assert len(names) == len(LEFT_OUT)
    assert [name for name in names if preset_meant(name)] == []
    assert why_left_out("no such model") is None


def test_no_two_presets_are_spelled_alike() -> None:
    names = profile_names(ProfileKind.MODELS)
    assert [preset_meant(name.upper()) for name in names] == list(names)
    others = set(all_names((ProfileKind.MODELS,))) - set(names)
    assert {alias for alias in others if alias == loaded(alias).ref} == set()


def test_a_folder_is_not_a_preset_of_that_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert loaded("Llama_3_8B").ref == "llama-3-8b"
    (tmp_path / "Llama_3_8B").mkdir()
    with pytest.raises(ModelError, match=r"config\.json"):
        load_source("Llama_3_8B")
