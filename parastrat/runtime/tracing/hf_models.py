"""Hugging Face configs without a closed form: built by transformers on the meta device, and traced."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from parastrat.errors import ModelError
from parastrat.runtime.building import Builder, build_module
from parastrat.runtime.tracing.trace import TracedSource, traced_module
from parastrat.sources.hub import HUB, cached_config

if TYPE_CHECKING:
    from collections.abc import Callable


def built_source(ref: str) -> TracedSource:
    """Return the model of a ``config.json``, of the folder that holds one, or of ``hf:org/name``.

    Raises:
        ModelError: transformers is missing or does not know the family, or the module cannot be built.
    """
    return traced_module(build_module(config_builder(ref)), ref=ref)


def config_builder(ref: str) -> Builder:
    """Return what builds the model of a ``config.json``, of its folder, or of ``hf:org/name``.

    It is of the class that the config's ``architectures`` names, else the family's language model, else
    its trunk. Neither weights nor code are fetched.

    Raises:
        ModelError: transformers is missing or does not know the family.
    """
    if find_spec("transformers") is None:
        raise ModelError(
            f"{ref} is of no family that parastrat knows in closed form: transformers has to build it",
            hint="pip install 'parastrat[hf]'",
        )
    path = cached_config(ref) if ref.startswith(HUB) else Path(ref)
    _check_known(ref, path)
    return Builder(ref=ref, build=lambda: _built(path))


def _check_known(ref: str, path: Path) -> None:
    import transformers  # noqa: PLC0415 - an extra

    kind = transformers.PretrainedConfig.get_config_dict(str(path))[0].get("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{ref}: transformers {transformers.__version__} knows no family {kind!r}",
            hint="pip install -U transformers, or write a function that builds it: path.py:callable",
        )


def _built(path: Path) -> nn.Module:
    import transformers  # noqa: PLC0415 - an extra

    config = transformers.AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    module: nn.Module = _maker(transformers, config)(config)
    return module


def _maker(transformers: Any, config: Any) -> Callable[[Any], Any]:
    """Return what makes the module of a config."""
    for name in getattr(config, "architectures", None) or ():
        stated = getattr(transformers, name, None)
        if stated is not None:
            found: Callable[[Any], Any] = stated
            return found
    language_models = {
        transformers.AutoModelForSeq2SeqLM: transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        transformers.AutoModelForCausalLM: transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    }
    known = (auto for auto, mapping in language_models.items() if type(config) in mapping)
    maker: Callable[[Any], Any] = next(known, transformers.AutoModel).from_config
    return maker
