# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Writes the presets of ``scripts/data/presets.csv`` to ``profiles/models``.

Usage: python scripts/make_presets.py

A row's style says what its family has in common, its ``model_type`` which family of transformers builds
modules of its shapes, if one does. A preset whose file lacks the first line that this script writes was
made by hand, and is left alone.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "scripts" / "data" / "presets.csv"
FOLDER = ROOT / "profiles" / "models"
HEADER = "# written by scripts/make_presets.py from scripts/data/presets.csv"

#: what a row tells of the published training
_TRAINING = ("sequence_length", "global_batch_size", "micro_batch_size", "virtual_stages")
_BIASES = ("qkv_bias = true", "output_bias = true", "ffn_bias = true")
_LLAMA = ('family = "decoder"', 'norm = "rms"', "gated = true")
_FP32_NORMS = ('family = "decoder"', 'norm = "rms-fp32"', "gated = true")
_LAYER = ('norm = "layer"', "gated = false")
_FALCON = ('family = "decoder"', *_LAYER, "fused_qkv = true", "parallel = true", "masked = true")
# its keys have no bias; no dropout in training
_WHISPER = (
    'family = "encoder-decoder"',
    "encoder_layers = LAYERS",
    *_LAYER,
    *_BIASES,
    "key_bias = false",
    "heads_first = true",
    "positions = POSITIONS",
)
#: lines that a family's architecture has in common; POSITIONS is the row's longest sequence
STYLES = {
    "llama": _LLAMA,
    "mixtral": _LLAMA,
    "deepseek": _LLAMA,
    "qwen2": (*_LLAMA, "qkv_bias = true"),
    "qwen3": (*_LLAMA, 'qk_norm = "head"'),
    "phi3": (*_LLAMA, "fused_qkv = true", "values_in_projection = true", "heads_first = true"),
    "gpt2": (
        'family = "decoder"',
        *_LAYER,
        *_BIASES,
        "fused_qkv = true",
        "positions = POSITIONS",
        "composite_activation = true",
        "dropout = true",
    ),
    "megatron": ('family = "decoder"', *_LAYER, *_BIASES, "fused_qkv = true", "positions = POSITIONS"),
    "megatron-dropout": (
        'family = "decoder"',
        *_LAYER,
        *_BIASES,
        "fused_qkv = true",
        "positions = POSITIONS",
        "dropout = true",
    ),
    "gemma": _FP32_NORMS,
    "gemma2": (*_FP32_NORMS, "layer_norms = 4", 'scores = "capped"', "capped_logits = true"),
    "gemma3": (*_FP32_NORMS, "layer_norms = 4", 'qk_norm = "head"'),
    "grok": (*_LLAMA, "layer_norms = 4"),
    "llama4": (*_LLAMA, "own_positions = true"),
    "gpt-oss": (*_FP32_NORMS, "qkv_bias = true", "output_bias = true", "sinks = true", 'scores = "sinks"'),
    "olmo": ('family = "decoder"', 'norm = "bare"', "gated = true"),
    "olmo2": (*_FP32_NORMS, 'qk_norm = "width"'),
    "falcon": _FALCON,
    "falcon-7b": (*_FALCON, "layer_norms = 1"),
    # two rows of the position table are the padding's
    "opt": (
        'family = "decoder"',
        *_LAYER,
        *_BIASES,
        "rectified = true",
        "positions = 2050",
        "dropout = true",
    ),
    "neox": (
        'family = "decoder"',
        *_LAYER,
        *_BIASES,
        "fused_qkv = true",
        "values_in_projection = true",
        "heads_first = true",
        "parallel = true",
    ),
    "bloom": (
        'family = "decoder"',
        *_LAYER,
        *_BIASES,
        "fused_qkv = true",
        "embedding_norm = true",
        'scores = "plain"',
    ),
    # the square reads what the ReLU gives; so of hybrids, whose attention knows no places
    "nemotron-h": (
        'family = "decoder"',
        'norm = "rms-fp32"',
        "gated = false",
        "squared = true",
        "rotary = false",
    ),
    "mamba2": ('family = "decoder"', 'norm = "rms"', "gated = false", "fp32_stream = true"),
    "nemotron": ('family = "decoder"', *_LAYER, "squared = true", "heads_first = true"),
    "bert": (
        'family = "encoder"',
        *_LAYER,
        *_BIASES,
        "positions = POSITIONS",
        "segments = 2",
        "transform_head = true",
        "pooler = true",
        "dropout = true",
    ),
    # two rows of the position table are the padding's
    "roberta": (
        'family = "encoder"',
        *_LAYER,
        *_BIASES,
        "positions = 514",
        "segments = 1",
        "transform_head = true",
        "dropout = true",
    ),
    "t5": (
        'family = "encoder-decoder"',
        "encoder_layers = LAYERS",
        'norm = "rms"',
        "gated = false",
        "rectified = true",
        "relative_buckets = 32",
        "dropout = true",
        "inner_dropout = true",
        "final_dropout = true",
    ),
    "whisper": _WHISPER,
    "whisper-v3": _WHISPER,
    "vit16": ('family = "vision-transformer"', *_LAYER, *_BIASES),
    "vit14": ('family = "vision-transformer"', *_LAYER, *_BIASES),
}
_PATCH = {"vit16": 16, "vit14": 14}
_BANDS = {"whisper": 80, "whisper-v3": 128}
_OPTIMIZER = {"t5": "adafactor"}
#: columns with a part of the architecture, as its fields in order with colons between; the last may lack
_PARTS = {
    "experts": ("count", "top_k", "ffn", "shared_ffn", "dense_layers", "period", "latent"),
    "latent": ("q_rank", "kv_rank", "nope_dim", "rope_dim", "v_dim"),
    "window": ("size", "layers", "chunked"),
    "state_space": ("heads", "head_dim", "state", "groups", "chunk"),
    "next_tokens": ("pattern", "depth"),
}
#: what all experts of a style have in common
_EXPERTS = {
    "gpt-oss": ("router_bias = true", "bias = true", "composite_activation = true"),
    "llama4": ("every_token = true",),
    "nemotron-h": ("fp32_router = true",),
    "mixtral": ("fp32_weights = true",),
    "deepseek": ("fp32_weights = true", "fp32_router = true"),
}
_FIELDS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn",
    "vocab",
    "tied",
    "max_sequence_length",
)


def preset(row: dict[str, str]) -> str:
    """Return a row's file."""
    style = row["style"]
    lines = [
        HEADER,
        f"name = {json.dumps(row['name'])}",
        *((f"model_type = {json.dumps(row['model_type'])}",) if row["model_type"] else ()),
        f"source = {json.dumps(row['source'])}",
        "",
        "# ties counted once",
        f"published_parameters = {row['published_parameters']}",
        f"published_source = {json.dumps(row['published_source'])}",
        "",
        "[architecture]",
        *(f"{name} = {row[name]}" for name in _FIELDS if row[name]),
        *(
            line.replace("POSITIONS", row["max_sequence_length"]).replace("LAYERS", row["layers"])
            for line in STYLES[style]
        ),
        *((f"pattern = {json.dumps(row['pattern'])}",) if row["pattern"] else ()),
    ]
    if style in _PATCH:
        patch = f"patch = {_PATCH[style]}"
        lines += ["", "[architecture.image]", "size = 224", patch, "channels = 3", "classes = 1000"]
    if style in _BANDS:
        lines += ["", "[architecture.audio]", f"channels = {_BANDS[style]}", "frames = 3000"]
    for part, names in _PARTS.items():
        lines += _part(part, names, row[part], style)
    if row["training_source"]:
        stated = [f"{name} = {row[name]}" for name in _TRAINING if row[name]]
        if style in _OPTIMIZER:
            stated.append(f"optimizer = {json.dumps(_OPTIMIZER[style])}")
        lines += ["", "[training]", *stated, f"source = {json.dumps(row['training_source'])}"]
    return "\n".join(lines) + "\n"


def _part(part: str, names: tuple[str, ...], stated: str, style: str) -> list[str]:
    if not stated:
        return []
    values = stated.split(":")
    lines = [
        f"{name} = {json.dumps(value) if name == 'pattern' else 'true' if value == name else value}"
        for name, value in zip(names, values, strict=False)
    ]
    return ["", f"[architecture.{part}]", *lines, *(_EXPERTS.get(style, ()) if part == "experts" else ())]


def sections(row: dict[str, str]) -> dict[str, list[str]]:
    """Return the tables below a row's architecture: ``experts`` is COUNT:TOP_K:FFN, ``more`` the rest.

    ``more`` is a list of ``TABLE.FIELD = VALUE``, separated by semicolons.
    """
    found: dict[str, list[str]] = {}
    if row["experts"]:
        names = ("count", "top_k", "ffn")
        found["experts"] = [
            f"{name} = {value}" for name, value in zip(names, row["experts"].split(":"), strict=True)
        ]
    for line in filter(None, row["more"].split("; ")):
        section, _, stated = line.partition(".")
        found.setdefault(section, []).append(stated)
    return found


def rows() -> list[dict[str, str]]:
    """Return the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def main() -> None:
    """Write the files, and say how many."""
    written = 0
    for row in rows():
        path = FOLDER / f"{row['name']}.toml"
        if path.exists() and not path.read_text(encoding="utf-8").startswith(HEADER):
            print(f"{path.name} was made by hand, and is left alone")
            continue
        path.write_text(preset(row), encoding="utf-8")
        written += 1
    print(f"{written} presets written")


if __name__ == "__main__":
    main()
