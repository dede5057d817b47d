"""Seconds that a processor takes to get memory anew for what a block makes.

glibc's malloc asks the system for tensors of 32 MiB and more each time, and gives them back as they are
freed (mallopt(3), M_MMAP_THRESHOLD: the threshold grows with what is freed, up to that); the system clears
each page of it as it is first written. Devices' memory is kept by torch's own allocator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parastrat.cost.operators import SPLITS, beside
from parastrat.cost.products import sides_of
from parastrat.model import Split
from parastrat.units import MIB

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.operators import Products
    from parastrat.model import Block
    from parastrat.units import Numbers, Seconds

#: bytes of the smallest tensor that malloc never keeps for the next one
_LARGE = 32 * MIB
#: of a loss: bytes of an element of what it makes of the logits
_FP32 = 4


def fresh_s(
    facts: Facts, blocks: tuple[Block, ...], products: Products, shares: Numbers, c: Columns
) -> tuple[Seconds, Seconds]:
    """Return what each block takes for that on one micro-batch, forward and backward; blocks before plans.

    Counted is what products give, and their gradients, and what a loss makes of the logits; norms and
    activations are not, whose tensors are not told one by one.
    """
    rate = facts.hardware.device.fresh_bytes_per_s
    if rate is None:
        return 0.0, 0.0
    m, n, k = sides_of(products, c, facts.model.experts)
    passes = beside(products.flops, c) * shares[products.split] / (2 * m * n * k)
    element = facts.workload.precision.compute_bytes
    forward = _large(element * m * n, passes)
    backward = _large(element * m * k, passes)
    backward += beside(products.weighted, c) * _large(element * n * k, passes)
    made, again = (products.by_block(each, len(blocks)) for each in (forward, backward))
    samples = shares[SPLITS.index(Split.VOCABULARY)]
    logits = _FP32 * (facts.model.vocab or 0) * (facts.model.sequence_length or 0) * samples
    of_loss = np.where(logits >= _LARGE, samples, 0.0)
    for place, block in enumerate(blocks):
        made[place] += block.activations.none.loss * of_loss
        again[place] += block.working.loss * of_loss
    return made / rate, again / rate


def _large(size: Numbers, count: Numbers) -> Numbers:
    """Return the bytes of so many tensors of a size, where malloc keeps none of them."""
    return np.where(size >= _LARGE, size * count, 0.0)
