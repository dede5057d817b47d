"""Moments of a block's forward and backward at which it may hold most."""

from __future__ import annotations

from dataclasses import dataclass

from parastrat.saved import Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Halfway:
    """A later moment of a block's backward, which may hold more: fewer tensors, more gradients."""

    #: of its parameters' gradients the share that is there
    meanwhile: float
    #: what is gone of what its backward reads, and of ``working``
    freed: Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A moment of a block's forward or backward at which it holds most, for some number of samples."""

    #: beside what is kept up to the block
    working: Saved
    #: of its parameters' gradients the share that is there
    meanwhile: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attends:
    """A block's attention as it runs backward where the ranks of a sequence gather keys and values.

    For one sample, by what divides it beside its positions.
    """

    #: of its parameters' gradients the share that is there
    meanwhile: float
    #: what is gone of what the block's backward reads, and of ``working``, less what attention makes itself
    #: of a rank's own positions whatever it gathers
    freed: Saved
    #: keys and values of all positions
    gathered: Saved
    #: its output where that is put together of several, beside those
    joined: Saved
    #: at the moments of most what is made of all positions, those among it, and of a rank's own
    moments: tuple[tuple[Saved, Saved], ...]
