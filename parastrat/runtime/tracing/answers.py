"""Answers for a forward that asks for values, where a trace has shapes alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from parastrat.runtime.building import place_now

_ATEN = torch.ops.aten
_SCALAR = _ATEN._local_scalar_dense.default  # noqa: SLF001  (operators have no public names)
#: operators that take what a mask chooses
_INDEXED = frozenset({"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What is answered, and the lines that asked."""

    #: to every question that has yes and no
    truth: bool
    places: dict[str, None] = field(default_factory=dict)

    def to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        """Return what an operator would, could it read values: all where it selects.

        Raises:
            Exception: ``error``, where no answer is an upper bound.
        """
        self.places[place_now()] = None
        first: torch.Tensor = args[0]
        if func is _ATEN.equal.default or (func is _SCALAR and first.dtype is torch.bool):
            return self.truth
        if func is _ATEN.nonzero.default:
            return first.new_empty((first.numel(), first.ndim), dtype=torch.long)
        if func is _ATEN.masked_select.default:
            return first.new_empty(max(first.numel(), args[1].numel()))
        if func.overloadpacket.__name__ in _INDEXED:
            indices = [_everywhere(index) if _is_mask(index) else [index] for index in args[1]]
            return func(first, list(chain.from_iterable(indices)), *args[2:], **kwargs)
        raise error

    @property
    def sentence(self) -> str:
        """What is to be said of an estimate with these answers."""
        answer = "yes" if self.truth else "no"
        return (
            f"the forward asks for values, which a trace lacks ({'; '.join(self.places)}): each answer is "
            f"taken to be {answer}, which holds most, and all to be selected where values select"
        )


def _is_mask(index: Any) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype in {torch.bool, torch.uint8}


def _everywhere(mask: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices of all of a mask's elements."""
    return [mask.new_empty(mask.numel(), dtype=torch.long) for _ in range(mask.ndim)]
