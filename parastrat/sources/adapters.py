"""A model with low-rank adapters beside frozen weights (LoRA, arXiv:2106.09685)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from parastrat.model import OperatorKind, Parameters, Split
from parastrat.sources.layers import elementwise

if TYPE_CHECKING:
    from parastrat.model import Block, ModelSpec, Operator

#: models that are kept, as closed forms are
_KEPT = 64
#: of one adapter: two products and an addition
_KERNELS = 3


@lru_cache(maxsize=_KEPT)
def with_adapters(model: ModelSpec, rank: int) -> ModelSpec:
    """Return the model with adapters of one rank beside its layers' queries, keys and values.

    No other weights are trained, so that no gradients of them are computed, reduced or kept. What frozen
    products would keep for their weights is counted as if they were trained.

    Args:
        model: trained whole.
        rank: the adapters' inner width.
    """
    blocks = tuple(_adapted(block, rank, model.precision.compute_bytes) for block in model.blocks)
    more = sum(
        (new.parameter_count - old.parameter_count) * old.repeat
        for new, old in zip(blocks, model.blocks, strict=True)
    )
    return replace(
        model,
        blocks=blocks,
        parameters=model.parameters + more,
        active_parameters=model.active_parameters + more,
        caveats=(*model.caveats, f"adapters of rank {rank} beside queries, keys and values are trained"),
    )


def _adapted(block: Block, rank: int, element: int) -> Block:
    own = _attended(block)
    adapters = (
        Parameters(
            trainable=sum(each.count * rank * (each.n + each.k) for each in own), split=Split.TENSOR
        ),
    )
    return replace(
        block,
        parameters=(
            *(replace(group, trainable=0, frozen=group.count) for group in block.parameters),
            *(adapters if own else ()),
        ),
        operators=(
            *(replace(each, weighted=False) for each in block.operators),
            *(_adapter(each, rank, element) for each in own),
        ),
    )


def _attended(block: Block) -> list[Operator]:
    """Return the products that attention reads: before its core, divided by columns."""
    kinds = [each.kind for each in block.operators]
    core = kinds.index(OperatorKind.ATTENTION) if OperatorKind.ATTENTION in kinds else 0
    before = block.operators[:core]
    return [each for each in before if each.kind is OperatorKind.MATMUL and each.split_side == "n"]


def _adapter(frozen: Operator, rank: int, element: int) -> Operator:
    """Return two products and an addition, whose few columns leave them bound by what they read and write.

    The first reads the input, the second writes the output, and both outputs are added.
    """
    moved = element * frozen.m * (frozen.k + 4 * frozen.n + 2 * rank)
    added = elementwise(moved / _KERNELS, frozen.split, count=_KERNELS * frozen.count)
    return replace(added, flops=2 * frozen.m * rank * (frozen.n + frozen.k) / _KERNELS)
