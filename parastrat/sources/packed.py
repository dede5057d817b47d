"""A model whose sequences are packed from shorter samples."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from parastrat.model import OperatorKind

if TYPE_CHECKING:
    from parastrat.model import Block, ModelSpec

#: models that are kept, as closed forms are
_KEPT = 64


@lru_cache(maxsize=_KEPT)
def with_packed(model: ModelSpec, share: float) -> ModelSpec:
    """Return the model where attention reads one sample's tokens alone, whatever it is packed with.

    Kernels that take samples of various lengths compute the blocks on the diagonal and nothing else. What
    scores would keep where no such kernel runs is counted as if sequences were whole.

    Args:
        model: of whole sequences.
        share: of a sequence that one sample takes, above 0 and at most 1.
    """
    return replace(model, blocks=tuple(_packed(block, share) for block in model.blocks))


def _packed(block: Block, share: float) -> Block:
    return replace(
        block,
        operators=tuple(
            replace(each, flops=each.flops * share, n=max(round(each.n * share), 1))
            if each.kind is OperatorKind.ATTENTION
            else each
            for each in block.operators
        ),
    )
