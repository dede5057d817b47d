"""Presets cut to a few blocks, as builders by name: ``dry_run_models.py:llama_3_1_8b`` is llama-3.1-8b."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import nn

from parastrat.runtime.preset_models import built
from parastrat.sources.presets import TransformerSource, load_preset

BLOCKS = 4
#: presets that transformers builds from their sizes
NAMES = (
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.1-8b",
    "llama-2-7b",
    "llama-2-13b",
    "llama-3.1-70b",
    "llama-3.1-405b",
    "gpt2",
    "gpt2-xl",
    "mistral-nemo-12b",
    "gemma-7b",
    "qwen2.5-7b",
    "qwen2.5-72b",
    "qwen3-8b",
    "qwen3-32b",
    "yi-34b",
)


def cut(name: str) -> TransformerSource:
    """Return a preset with a few blocks."""
    preset = load_preset(name)
    if not isinstance(preset, TransformerSource):
        raise TypeError(name)
    return replace(preset, architecture=replace(preset.architecture, layers=BLOCKS))


def __getattr__(attribute: str) -> Callable[[], nn.Module]:
    for name in NAMES:
        if attribute == name.replace("-", "_").replace(".", "_"):
            return lambda: built(cut(name).architecture)
    raise AttributeError(attribute)
