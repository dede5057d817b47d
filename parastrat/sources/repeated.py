"""Models that repeat keys and values for the heads that share them before they attend."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.model import ModelSpec

#: models that are kept, as closed forms are
_KEPT = 64


@lru_cache(maxsize=_KEPT)
def with_repeated_keys(model: ModelSpec, times: int) -> ModelSpec:
    """Return the model where ranks of context parallelism gather so many times the keys and values."""
    blocks = (
        replace(block, context_parallel_bytes=block.context_parallel_bytes * times)
        for block in model.blocks
    )
    return replace(model, blocks=tuple(blocks))
