"""A stack whose constants were corrected by runs on it, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parastrat.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """A constant before and after; ``low`` to ``high`` holds 80 % of what the runs leave possible."""

    name: str
    before: float
    after: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFit:
    """A stack with corrected constants.

    ``before`` and ``after`` have an error for each run: the logarithm of predicted over measured seconds.
    """

    stack: Stack
    constants: tuple[Corrected, ...]
    #: the fields of the stack that may have moved
    fields: tuple[str, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    #: how far the constants may still be off together, in squares of how well each was known before
    covariance: tuple[tuple[float, ...], ...] = ()

    @property
    def changes(self) -> dict[str, float]:
        """The corrected fields by name, to four digits."""
        return {field: float(f"{getattr(self.stack, field):.4g}") for field in self.fields}
