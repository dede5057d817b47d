"""Blocks with what they are under autocast, which leaves the weights and the residual stream in fp32.

Operators by the format in which CUDA's autocast runs them: torch/csrc/autograd/autocast_mode.h, and
https://docs.pytorch.org/docs/stable/amp.html, "CUDA Ops that can autocast to float32": layer norms, softmax
and losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from parastrat.model import Autocast, Block
from parastrat.stack import Kernels
from parastrat.workload import Precision

#: formats in which autocast computes where weights are not cast as they are gathered
_AUTOCAST = (Precision.BF16_MIXED, Precision.FP16_MIXED)


def with_autocast(
    chain: Callable[[bool], tuple[Block, ...]], precision: Precision, kernels: Kernels
) -> tuple[Block, ...]:
    """Return the blocks of a chain with what they are under autocast, where a plan may run it so.

    Args:
        chain: makes the blocks, under autocast or not.
        precision: of the training.
        kernels: autocast of others than eager ones is not known.
    """
    blocks = chain(False)
    if not (kernels.eager and precision in _AUTOCAST):
        return blocks
    cast = chain(True)
    # a block that stands several times is made once
    made: dict[tuple[int, int], Block] = {}
    for block, other in zip(blocks, cast, strict=True):
        if (id(block), id(other)) not in made:
            made[id(block), id(other)] = replace(block, autocast=_cast(other))
    return tuple(made[id(block), id(other)] for block, other in zip(blocks, cast, strict=True))


def _cast(block: Block) -> Autocast:
    return Autocast(
        activations=block.activations,
        working=block.working,
        boundary_bytes=block.boundary_bytes,
        boundary_fixed=block.boundary_fixed,
        awaited=block.awaited,
        retained=block.retained,
        beside_added=block.beside_added,
        busy=block.busy,
        masks=block.masks,
        copies_input=block.copies_input,
    )
