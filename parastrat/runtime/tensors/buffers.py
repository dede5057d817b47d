"""Buffers that a forward changes, such as running statistics, and what a recomputed one finds there."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def has_changing_buffers(module: nn.Module) -> bool:
    """Return whether a checkpoint has buffers: those may change, the others are constants."""
    buffers = {name for name, _ in module.named_buffers(remove_duplicate=False)}
    return not buffers.isdisjoint(module.state_dict(keep_vars=True))


def norms_with_statistics(module: nn.Module) -> list[nn.Module]:
    """Return the normalisations that keep running statistics."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    return [norm for norm in norms if norm.running_mean is not None]


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Let no batch normalisation count its batch: a recomputed forward has been counted before."""
    norms = [part for part in norms_with_statistics(module) if isinstance(part, _BatchNorm)]
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm, _, _ in held:
            # not track_running_stats: autograd would save other tensors than in the first forward
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, counted in held:
            norm.momentum, norm.num_batches_tracked = momentum, counted


class Replayed:
    """Gives a recomputed forward the buffers that the first one began with, and keeps what that left.

    Codebooks that follow their samples and counters would otherwise move twice, and the recomputed forward
    would read what later micro-batches made of them. Norms with running statistics are not among them.
    """

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        #: what training has been seen to change; None before the first forward
        self._changing: list[tuple[nn.Module, str]] | None = None

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what the forward and the one after it run in."""
        begun: dict[tuple[nn.Module, str], torch.Tensor] = {}
        return self._noticing(begun), self._given(begun)

    @contextmanager
    def _noticing(self, begun: dict[tuple[nn.Module, str], torch.Tensor]) -> Iterator[None]:
        places = changeable(self._block) if self._changing is None else self._changing
        held = {(owner, key): owner.get_buffer(key) for owner, key in places}
        known = {place: (buffer.clone(), buffer._version) for place, buffer in held.items()}  # noqa: SLF001  (no public counter)
        yield
        for place, (values, version) in known.items():
            buffer = place[0].get_buffer(place[1])
            if buffer is not held[place] or buffer._version != version:  # noqa: SLF001  (as above)
                begun[place] = values
        if self._changing is None and self._block.training:
            self._changing = list(begun)

    @contextmanager
    def _given(self, begun: dict[tuple[nn.Module, str], torch.Tensor]) -> Iterator[None]:
        now = {(owner, key): owner.get_buffer(key) for owner, key in begun}
        for (owner, key), values in begun.items():
            owner._buffers[key] = values.clone()  # noqa: SLF001  (setattr may have side effects)
        try:
            yield
        finally:
            for (owner, key), buffer in now.items():
                owner._buffers[key] = buffer  # noqa: SLF001  (as above)


def changeable(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the buffers, by owner and name, but for those of norms with running statistics."""
    norms = {id(norm) for norm in norms_with_statistics(module)}
    return [
        (part, key)
        for part in module.modules()
        if id(part) not in norms
        for key, buffer in part.named_buffers(recurse=False)
        if not buffer.is_meta
    ]
