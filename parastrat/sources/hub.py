"""Models of the Hugging Face hub that are already on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from parastrat.errors import ModelError
from parastrat.sources.hf_config import load_config

if TYPE_CHECKING:
    from parastrat.model import ModelSource


#: how a model of the hub is written
HUB = "hf:"


def load_cached(ref: str) -> ModelSource | None:
    """Return ``hf:org/name`` from the local cache; nothing is downloaded.

    Returns:
        None for a family without a closed form.

    Raises:
        ModelError: the cache holds no config of this model, or a malformed one.
    """
    return load_config(ref, cached_config(ref))


def cached_config(ref: str) -> Path:
    """Return the newest config of ``hf:org/name`` in the local cache.

    Raises:
        ModelError: the cache holds none.
    """
    name = ref.removeprefix(HUB)
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    snapshots = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    configs = sorted(snapshots.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    if not configs:
        raise ModelError(
            f"{ref}: no config of {name!r} in {cache}",
            hint=f"fetch it with: hf download {name} config.json, or name a config.json",
        )
    return configs[-1]
