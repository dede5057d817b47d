"""How many times as long products take whose matrices' rows are not aligned to 16 bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.cost.operators import beside
from parastrat.hardware import ALIGNED_ELEMENTS
from parastrat.remembered import remembered
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.operators import Products
    from parastrat.units import Numbers

#: elements of two bytes in what the kernels for other rows load at once, where rows allow that
_IN_PAIRS = 2


def slower(facts: Facts, products: Products, sides: tuple[Numbers, Numbers], c: Columns) -> Numbers | None:
    """Return how many times as long each product takes; None where all of them are aligned.

    Rows of a linear layer's matrices are as long as its output or its input is wide, in forward and in both
    products of backward: each reads or writes a matrix with rows of either length. The number of tokens is
    the length of none (https://github.com/pytorch/pytorch/pull/193638). A side that tp does not divide
    counts as it is.

    Convolutions are left out, whose library lays images out, and so are products in fp8, which refuse other
    sides, and in fp32: its kernels outside tensor cores lose a few percent.

    Args:
        facts: the job.
        products: those of its blocks.
        sides: n and k of one rank's products, products before plans.
        c: the plans.
    """
    device, precision = facts.hardware.device, facts.workload.precision
    four, two = device.aligned_to_four or 1.0, device.aligned_to_two or 1.0
    if four == two == 1.0 or not _in_two_bytes(facts):
        return None
    # so they mostly are, whatever is exempt
    ranks = _most_ranks(products)
    if ranks is not None and not np.any(ranks % c.tp):
        return None
    factor: Numbers = np.ones(np.shape(sides[0]))
    for own, side in zip(
        _sides(facts, products, inside=precision is not Precision.FP8), sides, strict=True
    ):
        length = beside(own, c)
        held = np.where((length == 0) | ~_is_multiple(side, 1), length, side)
        unaligned = np.where(_is_multiple(held, _IN_PAIRS), four, two)
        factor = np.maximum(factor, np.where(_is_multiple(held, ALIGNED_ELEMENTS), 1.0, unaligned))
    return factor


def _is_multiple(lengths: Numbers, unit: int) -> Any:
    # exact, for units that are powers of two; the remainder of a division takes ten times as long
    quotients = lengths / unit
    return quotients == np.floor(quotients)


@remembered
def _most_ranks(products: Products) -> int | None:
    """Return a number whose divisors leave all sides aligned as tp degrees; None where no degree does."""
    sides = np.stack([products.n, products.k]).astype(np.int64)
    counted = ~products.convolution & (sides > 1)
    if (sides[counted] % ALIGNED_ELEMENTS).any():
        return None
    divided = counted & np.stack([products.divides_n, products.divides_k])
    return int(np.gcd.reduce(sides[divided] // ALIGNED_ELEMENTS, initial=0))


def _in_two_bytes(facts: Facts) -> bool:
    """Return whether products run in a format of 16 bits, also those that stay out of fp8."""
    precision = facts.workload.precision
    if precision is Precision.FP32:
        return False
    return facts.hardware.device.bf16_native or precision is Precision.FP16_MIXED


def _sides(facts: Facts, products: Products, *, inside: bool) -> Any:
    """Return n and k of each product; 0 of what is aligned whatever they are.

    Stacks that pad the vocabulary do so to multiples of 128 for each tp rank. Inductor pads what it
    compiles, where that is sooner done (torch/_inductor/fx_passes/pad_mm.py, shape_padding); it compiles
    the repeated blocks alone. Lengths of one are unknown, or of vectors.
    """
    exempt = products.convolution.copy()
    if facts.stack.kernels.compiled or not inside:
        exempt |= products.repeated
    if facts.stack.pads_vocabulary and facts.model.vocab:
        exempt |= ~products.repeated & (products.n == facts.model.vocab)
    sides = np.stack([products.n, products.k])
    return np.where(exempt | (sides <= 1), 0.0, sides)
