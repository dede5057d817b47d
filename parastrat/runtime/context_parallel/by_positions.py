"""Logits that the context-parallel ranks divide by positions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from parastrat.runtime.context_parallel.positions import Positions, gathered, summed
from parastrat.runtime.logits import Entropy, Whole, logits

if TYPE_CHECKING:
    import torch

#: samples come first, and positions next, unless both are one
_POSITIONS = 1
_ROWS = 2


def by_positions(own: torch.Tensor, positions: Positions) -> torch.Tensor:
    """Return the logits of which this rank has its positions: gathered, or to be gathered.

    Args:
        own: of samples, this rank's positions, and the vocabulary.
        positions: of each rank.
    """
    shape = (own.shape[0], own.shape[1] * positions.ranks, *own.shape[2:])
    return logits(own, _ByPositions(positions=positions, shape=shape, samples=own.shape[0]))


@dataclass(slots=True, kw_only=True)
class _ByPositions(Whole):
    """Logits of samples, positions and vocabulary, or of the first two as one: of all rows."""

    positions: Positions
    samples: int

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        if len(self.shape) > _ROWS:
            return gathered(own, self.positions, _POSITIONS)
        whole = gathered(self._in_samples(own), self.positions, _POSITIONS)
        return whole.flatten(0, 1)

    def share(self, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        samples, rows = self.samples, self._rows
        if shape == (rows, self.shape[-1]):
            return rows // self.positions.ranks, shape[-1]
        if shape == (samples, rows // samples, self.shape[-1]):
            return samples, rows // samples // self.positions.ranks, shape[-1]
        return None

    def reads(self, index: tuple[Any, ...], dims: int) -> bool:
        return dims > _ROWS and all(item in (Ellipsis, slice(None)) for item in index)

    def cross_entropy(self, own: torch.Tensor, asked: Entropy) -> torch.Tensor | None:
        target = self._of_rows(asked.target)
        keywords: dict[str, Any] = {"ignore_index": asked.ignored, "label_smoothing": asked.smoothing}
        if asked.reduction == "none":
            losses = functional.cross_entropy(own, target, reduction="none", **keywords)
            each = self._in_samples(losses)
            return gathered(each, self.positions, _POSITIONS).flatten()
        part = functional.cross_entropy(own, target, reduction="sum", **keywords)
        total = summed(part.float(), self.positions)
        if asked.reduction == "mean":  # all ranks have all targets
            total = total / (asked.target != asked.ignored).sum()
        return total.to(part.dtype)

    @property
    def _rows(self) -> int:
        return math.prod(self.shape[:-1])

    def _in_samples(self, rows: torch.Tensor) -> torch.Tensor:
        samples: torch.Tensor = rows.unflatten(0, (self.samples, -1))  # type: ignore[no-untyped-call]
        return samples

    def _of_rows(self, whole: torch.Tensor) -> torch.Tensor:
        """Return what is this rank's of a value for each row."""
        return self.positions.own(self._in_samples(whole), _POSITIONS).flatten()
