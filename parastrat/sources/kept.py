"""A model whose selective recompute keeps another list of tensors than torchtitan's eager one."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from parastrat.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.model import Block, ModelSpec

#: models that are kept, as closed forms are
_KEPT = 64
#: to experts and back
_EXCHANGES = 2


@lru_cache(maxsize=_KEPT)
def with_every_product(model: ModelSpec) -> ModelSpec:
    """Return the model where that keeps every product's output, not every second one's."""
    return _keeping(model, lambda block: block.activations.products)


@lru_cache(maxsize=_KEPT)
def with_gathered(model: ModelSpec) -> ModelSpec:
    """Return the model where that keeps what tensor parallelism gathers along sequences as well."""
    return _keeping(model, lambda block: _more(block, Saved(replicated=_gathered_bytes(block))))


@lru_cache(maxsize=_KEPT)
def with_exchanged(model: ModelSpec) -> ModelSpec:
    """Return the model where that keeps the rows that experts are sent and give back as well."""
    return _keeping(
        model, lambda block: _more(block, Saved(expert=_EXCHANGES * block.expert_parallel_bytes))
    )


@lru_cache(maxsize=_KEPT)
def with_attended(model: ModelSpec, units: int) -> ModelSpec:
    """Return the model where the first of its units keep attention's output alone, and no product's."""
    blocks: list[Block] = []
    for block in model.blocks:
        first = min(units, block.repeat) if block.unit else 0
        units -= first
        own = _selective(block, block.activations.attended)
        parts = replace(own, repeat=first), replace(block, repeat=block.repeat - first)
        blocks += [part for part in parts if part.repeat]
    return replace(model, blocks=tuple(blocks))


def _gathered_bytes(block: Block) -> float:
    return block.tensor_parallel_collectives * block.tensor_parallel_bytes


def _more(block: Block, saved: Saved) -> Saved:
    return block.activations.selective + saved


def _keeping(model: ModelSpec, kept: Callable[[Block], Saved | None]) -> ModelSpec:
    """Return the model with what selective recompute keeps of each block, where that is known."""
    return replace(model, blocks=tuple(_selective(block, kept(block)) for block in model.blocks))


def _selective(block: Block, kept: Saved | None) -> Block:
    if kept is None:
        return block
    return replace(block, activations=replace(block.activations, selective=kept))
