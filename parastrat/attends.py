"""A block's attention as it runs backward where the ranks of a sequence gather keys and values."""

from __future__ import annotations

from dataclasses import dataclass

from parastrat.saved import Saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Attends:
    """What is there then and what is gone, for one sample, by what divides it beside its positions."""

    #: of its parameters' gradients the share that is there
    meanwhile: float
    #: what is gone of what the block's backward reads, and of ``working``, less what attention makes itself
    #: of a rank's own positions whatever it gathers
    freed: Saved
    #: keys and values of all positions
    gathered: Saved
    #: at the moments of most what is made of all positions, those among it, and of a rank's own
    moments: tuple[tuple[Saved, Saved], ...]
