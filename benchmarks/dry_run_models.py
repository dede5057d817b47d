"""Presets cut to a few blocks, as builders by name: ``dry_run_models.py:llama_3_1_8b`` is llama-3.1-8b.

Of as many blocks as stand behind it: ``llama_3_1_8b__6`` has six.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.profiles import model_names
from parastrat.runtime.preset_models import built
from parastrat.sources.presets import TransformerSource, load_preset
from parastrat.stack import Kernels
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from parastrat.model import ModelSource

BLOCKS = 4
#: above it a model is no decoder of the comparison
MOST = 405.9e9


def decoders() -> tuple[str, ...]:
    """Return the decoder presets up to 405B that transformers builds, with kernels that a CPU has too."""
    return tuple(name for name in model_names() if _wanted(load_preset(name)))


def _wanted(preset: ModelSource | None) -> bool:
    if not isinstance(preset, TransformerSource) or preset.model_type is None:
        return False
    # the closed form of scans is that of kernels that run on GPUs alone; torch's own path keeps more
    if preset.architecture.state_space is not None:
        return False
    return preset.at(1, Precision.FP32, Kernels.EAGER).parameters <= MOST


def cut(name: str, blocks: int | None = BLOCKS) -> TransformerSource:
    """Return a preset with a few blocks; with None all of them."""
    preset = load_preset(name)
    if not isinstance(preset, TransformerSource):
        raise TypeError(name)
    if blocks is None:
        return preset
    own, window = preset.architecture, preset.architecture.window
    if window is not None:
        # the first ones, as they are in the whole
        near = window.near(own.layers)[:blocks]
        whole = tuple(index for index, is_near in enumerate(near) if not is_near)
        window = replace(window, layers=sum(near), whole=whole)
    return replace(preset, architecture=replace(own, layers=blocks, window=window))


def builder_name(name: str, blocks: int = BLOCKS) -> str:
    """Return the builder of a preset with so many blocks."""
    plain = name.replace("-", "_").replace(".", "_")
    return plain if blocks == BLOCKS else f"{plain}__{blocks}"


def __getattr__(attribute: str) -> Callable[[], nn.Module]:
    plain, _, blocks = attribute.partition("__")
    for name in decoders() if plain else ():
        if plain == builder_name(name):
            source = cut(name, int(blocks) if blocks else BLOCKS)
            return lambda: built(source.model_type or "", source.architecture)
    raise AttributeError(attribute)
