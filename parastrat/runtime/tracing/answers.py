"""Answers for a forward that asks for values, where a trace has shapes alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from parastrat.runtime.building import place_now
from parastrat.runtime.tensors.storages import storage_of
from parastrat.runtime.tracing.masks import chosen_by, takes_masks

_ATEN = torch.ops.aten
_SCALAR = _ATEN._local_scalar_dense.default  # noqa: SLF001  (operators have no public names)
_PACKED = _ATEN._pack_padded_sequence.default  # noqa: SLF001
#: runs the forward and the backward
_RUNNER = Path(__file__).with_name("watched.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What is answered, and the lines that asked."""

    #: to every question that has yes and no; a fraction is then as large, or as small, as can be
    truth: bool
    places: dict[str, None] = field(default_factory=dict)
    #: answers that are tensors with values, and what was computed of them, by storage
    _known: dict[int, torch.Tensor] = field(default_factory=dict)

    def to(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
        """Return what an operator would, could it read values: all where it selects.

        Raises:
            Exception: ``error``, where no answer is an upper bound.
        """
        if place := place_now(_RUNNER):
            self.places[place] = None
        first: torch.Tensor = args[0]
        if func is _ATEN.equal.default or (func is _SCALAR and first.dtype is torch.bool):
            return self.truth
        if func is _SCALAR and first.is_floating_point():
            return math.inf if self.truth else -math.inf  # which nothing can take for a size
        if func is _PACKED:
            packed, sizes = _as_long(*args)
            self._keep(sizes)
            return packed, sizes
        if func is _ATEN.nonzero.default:
            return first.new_empty((first.numel(), first.ndim), dtype=torch.long)
        if func is _ATEN.masked_select.default:
            return first.new_empty(max(first.numel(), args[1].numel()))
        if takes_masks(func):
            return func(first, chosen_by(args[1], _everywhere), *args[2:], **kwargs)
        raise error

    def know(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether all that an operator is given are answers with values."""
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        return bool(given) and all(storage_of(tensor) in self._known for tensor in given)

    def computed(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what an operator makes of answers with values."""
        with unset_fake_temporarily():
            result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._keep(leaf)
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        self._known[storage_of(tensor)] = tensor

    @property
    def sentence(self) -> str:
        """What is to be said of an estimate with these answers."""
        answer, extreme = ("yes", "infinite") if self.truth else ("no", "minus infinite")
        places = "; ".join(self.places) or "in backward"
        return (
            f"the forward asks for values, which a trace lacks ({places}): each answer is taken to be "
            f"{answer}, or {extreme}, which holds most; all to be selected where values select, experts "
            "to be chosen equally often, and packed sequences to be equally long"
        )


def _as_long(padded: torch.Tensor, _lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """Return sequences packed as if none were shorter than another, and how many each step has."""
    samples, steps = padded.shape[:2] if batch_first else (padded.shape[1], padded.shape[0])
    with unset_fake_temporarily():  # recurrent layers read these values
        sizes = torch.full((steps,), samples, dtype=torch.long)
    return padded.new_empty(samples * steps, *padded.shape[2:]), sizes


def _everywhere(mask: torch.Tensor) -> list[torch.Tensor]:
    """Return the indices of all of a mask's elements."""
    return [mask.new_empty(mask.numel(), dtype=torch.long) for _ in range(mask.ndim)]
