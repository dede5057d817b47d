"""What of a model's scans can be divided."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scans:
    """Layers whose tokens follow from those before them, one state after the other (Mamba-2)."""

    heads: int
    #: of heads, each with its own part of what is projected
    groups: int
    #: tp divides heads and groups, and cp heads; else each rank scans whole sequences with all of them
    divided: bool
