"""Hugging Face's caches of keys and values: training has no use for the copies that they keep."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


def without_caches(module: nn.Module) -> bool:
    """Turn caches off, of parts with configs of their own too; return whether any was on."""
    caching = _caching(module)
    for config in caching:
        config.use_cache = False
    return bool(caching)


@contextmanager
def caches_off(module: nn.Module) -> Iterator[None]:
    """Turn caches off for a while."""
    caching = _caching(module)
    try:
        without_caches(module)
        yield
    finally:
        for config in caching:
            config.use_cache = True


def _caching(module: nn.Module) -> list[Any]:
    configs = [config for part in module.modules() if (config := getattr(part, "config", None)) is not None]
    return [config for config in configs if getattr(config, "use_cache", None) is True]
