"""Models by name or config file, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.errors import ModelError
from parastrat.profiles.catalogue import preset_meant, why_left_out
from parastrat.sources.presets import left_out, load_preset, unknown_model

if TYPE_CHECKING:
    from parastrat.model import ModelSource

__all__ = ["load_source"]

_HUB = "hf:"


def load_source(ref: str) -> ModelSource | None:
    """Return a preset or a Hugging Face config; None for what only torch can build.

    Args:
        ref: MODEL as typed: a preset in any spelling, a ``config.json`` or its folder,
            ``module:callable`` or ``path.py:callable`` (for which this returns None), ``hf:org/name``.

    Raises:
        ModelError: unknown name, or one that has no preset; or a config file that is unreadable,
            incomplete or of an unknown family.
    """
    if ref.startswith(_HUB):
        from parastrat.sources.hub import load_cached  # noqa: PLC0415  (presets do without)

        return load_cached(ref)
    if ":" in ref:
        return None
    preset = load_preset(ref)
    if preset is not None:
        return preset
    path = Path(ref)
    if not path.exists():
        if (meant := preset_meant(ref)) is not None:
            return load_preset(meant)
        if (reason := why_left_out(ref)) is not None:
            raise left_out(ref, reason)
    if path.exists() or path.suffix == ".json" or "/" in ref:
        from parastrat.sources.hf_config import load_config  # noqa: PLC0415  (presets do without)

        return load_config(ref, path)
    if path.suffix == ".py":
        raise ModelError(f"{ref!r} names no callable", hint=f"write {ref}:build, with the builder's name")
    raise unknown_model(ref)
