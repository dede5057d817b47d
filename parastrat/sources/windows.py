"""Layers in which a query does not see all keys before it, and which of a model's these are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Layers in which a query sees only the keys before it that are near."""

    #: keys that a query sees, its own among them
    size: int
    #: so many of the layers
    layers: int
    #: a query sees the keys of its own stretch of ``size`` tokens (Llama 4)
    chunked: bool = False
    #: places of the layers in which it sees all; empty: the last of every so many
    whole: tuple[int, ...] = ()

    def near(self, layers: int) -> list[bool]:
        """Return which of so many layers these are, in order."""
        every = layers // max(layers - self.layers, 1)
        if self.whole or self.layers == layers:
            return [index not in self.whole for index in range(layers)]
        return [(index + 1) % every != 0 for index in range(layers)]
