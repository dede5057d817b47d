"""MODEL as a builder: a callable, a Hugging Face config, or a preset that transformers builds."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parastrat.errors import ModelError
from parastrat.runtime.building import Builder, load_builder
from parastrat.runtime.tracing.hf_models import config_builder
from parastrat.sources.hf_written import config_of
from parastrat.sources.hub import HUB
from parastrat.sources.presets import TransformerSource, load_preset

if TYPE_CHECKING:
    from torch import nn

    from parastrat.sources.architecture import Architecture


def builder_of(ref: str) -> Builder:
    """Return what builds MODEL.

    Raises:
        ModelError: it is a preset of a form that is not built here, or transformers is missing.
    """
    if ":" in ref and not ref.startswith(HUB):
        return load_builder(ref)
    preset = None if ref.startswith(HUB) or Path(ref).exists() else load_preset(ref)
    if preset is None:
        return config_builder(ref)
    if not isinstance(preset, TransformerSource) or preset.model_type is None:
        raise ModelError(
            f"{ref} is known by its sizes alone, and of no form that transformers builds from them here",
            hint="name the model to build: --model path.py:callable, or a config.json",
        )
    if find_spec("transformers") is None:
        raise ModelError(f"{ref} is built by transformers", hint="pip install 'parastrat[hf]'")
    return Builder(ref=ref, build=partial(built, preset.model_type, preset.architecture))


def built(model_type: str, a: Architecture) -> nn.Module:
    """Return the language model that transformers makes of these sizes.

    Raises:
        ModelError: the family's configs cannot say this architecture.
    """
    import transformers  # noqa: PLC0415 - an extra

    make: Any = transformers.CONFIG_MAPPING[model_type]
    # rates that no closed form hangs on have defaults as well
    rates = (
        {}
        if a.dropout
        else {name: 0.0 for name, value in make().to_dict().items() if _is_rate(name, value)}
    )
    config = make(use_cache=False, **rates | config_of(model_type, a))
    if a.latent is not None:
        # the width that rotary tables have, where published configs state that of a head's values
        config.head_dim = a.latent.rope_dim
    module: nn.Module = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    return module


def _is_rate(name: str, value: object) -> bool:
    return "drop" in name and isinstance(value, float)
