"""Buffers that a forward changes while the backwards of earlier micro-batches wait."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from parastrat.runtime.tensors.buffers import changeable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


class Unread:
    """Lets each forward change copies of what earlier ones changed: their backwards may read what they had.

    Args:
        module: of the one stage of this rank; several would share their tensors.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._changing: set[tuple[nn.Module, str]] = set()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run one forward inside."""
        for owner, key in self._changing:
            owner._buffers[key] = owner.get_buffer(key).clone()  # noqa: SLF001  (setattr may have side effects)
        held = {place: place[0].get_buffer(place[1]) for place in changeable(self._module)}
        versions = {place: buffer._version for place, buffer in held.items()}  # noqa: SLF001  (no public counter)
        yield
        self._changing |= {place for place, buffer in held.items() if buffer._version != versions[place]}  # noqa: SLF001
