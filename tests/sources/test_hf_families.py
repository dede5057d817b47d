"""Every decoder family of transformers: our count is the built module's, or there is none."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn import drawn

from parastrat.errors import ModelError
from parastrat.profiles import profiles_root
from parastrat.sources import load_source
from parastrat.sources.hf_families import FORMS
from parastrat.sources.hf_older import OLDER
from parastrat.sources.presets import TransformerSource
from parastrat.stack import Kernels
from parastrat.workload import Precision

transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402 - after the skip
from transformers.models.auto.modeling_auto import (  # noqa: E402 - after the skip
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES,
)

#: sizes that are all different, so that no two can be taken for each other
SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 160,
    "ffn_dim": 144,
    "dff": 152,
    "ffn_hidden_size": 136,
    "intermediate_size_mlp": 168,
    "vocab_size": 1009,
    "max_position_embeddings": 77,
    "num_experts": 5,
    "num_local_experts": 5,
    "n_routed_experts": 5,
    "moe_num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 56,
    "n_shared_experts": 2,
    "num_shared_experts": 2,
    "shared_expert_intermediate_size": 48,
    "shared_intermediate_size": 40,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 32,
    "v_head_dim": 12,
    "word_embed_proj_dim": 96,
}
#: what a family needs beside, to be built so small
MORE: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "glm4_moe": {"head_dim": 16},
    "mamba2": {"num_heads": 12},
    "nemotron_h": {"mamba_num_heads": 12, "n_groups": 2, "moe_shared_expert_intermediate_size": 72},
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
#: fields that say nothing of a module's shape
IGNORED = {"model_type", "architectures", "transformers_version", "dtype"}
#: sizes that are null by default, or that SMALL leaves as they are
OTHER_SIZES = {
    *("n_inner", "sliding_window", "attention_chunk_size", "first_k_dense_replace", "decoder_sparse_step"),
    *(
        "interleave_moe_layer_step",
        "num_ln_in_parallel_attn",
        "expansion_ratio",
        "num_nextn_predict_layers",
        "moe_latent_size",
    ),
    *("ssm_state_size", "state_size", "conv_kernel", "chunk_size", "expand", "num_heads", "mamba_head_dim"),
}


def small(kind: str) -> dict[str, Any]:
    """Return the fields of a small config, by the family's own names."""
    cls = CONFIG_MAPPING[kind]
    names, known = getattr(cls, "attribute_map", {}), cls().to_dict()
    table = {names.get(name, name): size for name, size in SMALL.items() if names.get(name, name) in known}
    table |= {name: 1 for name in TOKENS if isinstance(known.get(name), int)}
    return table | MORE.get(kind, {})


def variations(kind: str) -> Iterator[dict[str, Any]]:
    """Return changes to a small config: every flag the other way, every size moved or null."""
    table = small(kind)
    for name, value in CONFIG_MAPPING[kind]().to_dict().items():
        if name in IGNORED:
            continue
        if isinstance(value, bool):
            yield {name: not value}
        elif name in table or name in OTHER_SIZES:
            now = table.get(name, value) or 1
            if isinstance(now, int):
                yield from ({name: other} for other in (2 * now, 3, 2, 1, None))
        elif value is None:
            yield from ({name: 2}, {name: True})
    yield {"head_dim": 24}
    yield {"num_key_value_heads": 3}
    yield {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}
    yield {"mlp_layer_types": ["dense", "sparse", "dense", "sparse"]}


def built(kind: str, table: dict[str, Any]) -> tuple[Any, int]:
    """Return the config as transformers completes it, and the parameters of its module."""
    config = CONFIG_MAPPING[kind](**table)
    with torch.device("meta"):
        module = getattr(transformers, CLASSES[kind])(config)
    return config, sum(parameter.numel() for parameter in module.parameters())


def closed(folder: Path, kind: str, table: dict[str, Any]) -> int | None:
    """Return our count of a config file; None where there is no closed form."""
    (folder / "config.json").write_text(json.dumps(table | {"model_type": kind}), encoding="utf-8")
    source = load_source(str(folder))
    return None if source is None else source.at(8, Precision.FP32, Kernels.EAGER).parameters


@pytest.mark.parametrize("kind", FORMS)
def test_a_family_counts_what_is_built(tmp_path: Path, kind: str) -> None:
    config, parameters = built(kind, small(kind))
    assert closed(tmp_path, kind, small(kind)) == parameters
    whole = json.loads(config.to_json_string(use_diff=False))
    assert closed(tmp_path, kind, whole) == parameters


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", drawn([*FORMS], 6))
def test_no_field_changes_the_count_unseen(tmp_path: Path, kind: str) -> None:
    right = 0
    for change in variations(kind):
        table = small(kind) | change
        try:
            _, parameters = built(kind, table)
        except Exception:  # noqa: BLE001, S112 - any of the many ways to refuse a config that cannot be
            continue
        try:
            ours = closed(tmp_path, kind, table)
        except ModelError:  # such as heads that do not divide: transformers only fails when it computes
            continue
        assert ours in (None, parameters), change
        right += ours is not None
    assert right > len(SMALL) // 3


@pytest.mark.parametrize("kind", sorted(set(CLASSES) - set(FORMS)))
def test_a_family_without_a_form_is_not_guessed(tmp_path: Path, kind: str) -> None:
    assert closed(tmp_path, kind, {"hidden_size": 96, "num_hidden_layers": 4}) is None


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "gpt_oss", "cohere2", "olmo3", "cwm", "exaone4"])
def test_windows_are_in_as_many_layers_as_transformers_has_them(tmp_path: Path, kind: str) -> None:
    table = small(kind) | {"num_hidden_layers": 13, "sliding_window": 32}
    config, _ = built(kind, table)
    (tmp_path / "config.json").write_text(json.dumps(table | {"model_type": kind}), encoding="utf-8")
    source = load_source(str(tmp_path))
    assert isinstance(source, TransformerSource)
    window = source.architecture.window
    assert window is not None
    assert (window.size, window.layers) == (32, config.layer_types.count("sliding_attention"))
    assert window.near(13) == [each == "sliding_attention" for each in config.layer_types]


def test_another_head_on_the_same_trunk_is_not_the_family(tmp_path: Path) -> None:
    table = small("llama")
    assert closed(tmp_path, "llama", table | {"architectures": ["LlamaForCausalLM"]}) is not None
    assert closed(tmp_path, "llama", table | {"architectures": ["LlamaForTokenClassification"]}) is None


def test_layers_of_another_kind_have_no_closed_form(tmp_path: Path) -> None:
    kinds = ["full_attention"] * 3 + ["linear_attention"]
    assert closed(tmp_path, "qwen3", small("qwen3") | {"layer_types": kinds}) is None


@pytest.mark.parametrize("kind", OLDER)
def test_attention_runs_without_a_kernel_where_the_installed_transformers_has_none(kind: str) -> None:
    form, _, _ = OLDER[kind]
    assert (form.get("scores") is None) == bool(getattr(transformers, CLASSES[kind])._supports_sdpa)


def test_codegens_heads_are_divided_by_groups(tmp_path: Path) -> None:
    table = small("codegen") | {"model_type": "codegen"}
    (tmp_path / "config.json").write_text(json.dumps(table), encoding="utf-8")
    source = load_source(str(tmp_path))
    assert source is not None
    model = source.at(8, Precision.FP32, Kernels.EAGER)
    with torch.device("meta"):
        module = transformers.CodeGenForCausalLM(CONFIG_MAPPING["codegen"](**small("codegen")))
    assert model.divisible == module.transformer.h[0].attn.mp_num


def test_the_defaults_are_those_of_the_installed_transformers() -> None:
    root = profiles_root()
    stored = json.loads((root / "families.json").read_text(encoding="utf-8"))
    if transformers.__version__ not in stored["source"]:
        pytest.skip(f"written for another version than {transformers.__version__}")
    script = runpy.run_path(str(root.parent / "scripts" / "family_defaults.py"))
    assert stored == json.loads(json.dumps(script["table"]()))
