"""Times of a machine's kernels and collectives."""

from parastrat.runtime.measuring.ranks import measure

__all__ = ["measure"]
