"""Two micro-batches that are traced, and what they tell about all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parastrat.saved import Saved

#: the micro-batches that are traced; one sample is too few for batch norm
SAMPLES = (2, 4)


def for_one(small: float, large: float) -> float:
    """Return the value for one sample on the line through those of both micro-batches."""
    slope = (large - small) / (SAMPLES[1] - SAMPLES[0])
    return max(0.0, small - slope * (SAMPLES[0] - 1))


def line(small: float, large: float) -> Saved:
    """Return the bytes of both micro-batches as what each sample takes, and what is there for any number.

    The latter are statistics of norms over a batch, masks, positions, and whatever has the size of weights.
    Bytes that grow faster than the micro-batch are proportional to it as in the larger one. Those that
    shrink, as what has the size of weights does beside activations that grow, stay as in the smaller one.
    """
    slope = (large - small) / (SAMPLES[1] - SAMPLES[0])
    fixed = small - slope * SAMPLES[0]
    if slope < 0:
        return Saved(fixed=small)
    if fixed < 0:
        return Saved(replicated=large / SAMPLES[1])
    return Saved(replicated=slope, fixed=fixed)


def divided(whole: Saved, shares: Mapping[str, float]) -> Saved:
    """Return bytes of which tensor parallelism divides shares of what each sample takes.

    Args:
        whole: as ``line`` returns it.
        shares: by the field of ``Saved``.
    """
    parts = {name: share * whole.replicated for name, share in shares.items()}
    return replace(whole, replicated=whole.replicated - sum(parts.values()), **parts)


def share_of(small: tuple[float, float], large: tuple[float, float]) -> float:
    """Return which share of what each sample takes is divided.

    Args:
        small: the bytes of fewer samples, and those without what is divided.
        large: those of more.
    """
    whole, rest = (large[place] - small[place] for place in (0, 1))
    if whole <= 0 or small[0] * SAMPLES[1] < large[0] * SAMPLES[0]:
        # it grows faster than the micro-batch, or not at all
        whole, rest = large
    return (whole - rest) / whole if whole else 0.0


def larger_of(several: Sequence[Saved]) -> Saved:
    """Return what each of several takes at most, for any number of samples."""
    names = Saved.__dataclass_fields__
    return Saved(**{name: max(getattr(saved, name) for saved in several) for name in names})
