"""Degrees that divide what they must, as fixes name them."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.plan import Mesh

#: a fix that names more choices is not read
_MOST = 2


def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a positive number, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*low, *(number // d for d in low)}))


def nearest_divisors(
    degree: int, *numbers: int, allowed: Callable[[int], bool] = lambda _: True
) -> tuple[int, ...]:
    """Return the one or two common divisors of some numbers that are nearest to a degree, in ratio.

    Args:
        degree: what divides not.
        numbers: what is to be divided.
        allowed: whether a divisor is none that another rule refuses.
    """
    choices = (d for d in divisors(gcd(*numbers)) if d != degree and allowed(d))
    nearest = sorted(choices, key=lambda d: (max(d, degree) / min(d, degree), d))
    return tuple(nearest[:_MOST])


def ranks_beside(mesh: Mesh) -> int:
    """Return the ranks that tp and the data axes share, of which another tp must be a divisor."""
    return mesh.dp * mesh.tp


def nearest_multiples(number: int, unit: int) -> tuple[int, ...]:
    """Return the multiples of a unit around a number; below first, none of them 0."""
    below = number // unit * unit
    return tuple(multiple for multiple in (below, below + unit) if multiple > 0)


def either(choices: tuple[int, ...]) -> str:
    """Return choices as a sentence has them: ``8 or 4``."""
    return " or ".join(f"{choice:,}" for choice in choices)
