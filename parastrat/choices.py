"""Where a column of plans holds one of some choices."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from enum import StrEnum

    from parastrat.units import Numbers


def is_any_of(codes: Numbers, choices: tuple[StrEnum, ...]) -> Any:
    """Return where a column holds one of some choices of an enumeration; -1 is none of them."""
    return _marks(type(choices[0]), choices)[codes]


@cache
def _marks(enumeration: type[StrEnum], choices: tuple[StrEnum, ...]) -> Any:
    # rules are imported where no array is made
    import numpy as np  # noqa: PLC0415

    # the last one is for -1
    return np.array([choice in choices for choice in enumeration] + [False])
