"""At which of its moments a block holds most, for any number of samples.

What is alive at a moment is a straight line over the samples: what has the size of weights stays,
activations grow. Few samples show most where weights and their gradients are; many, where activations are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parastrat.moments import Busy
from parastrat.runtime.tracing.lifetimes import Measured
from parastrat.runtime.tracing.samples import SAMPLES, divided, share_of
from parastrat.runtime.tracing.traced import Traced
from parastrat.saved import Saved

#: micro-batches at which it is looked at which moment holds most
_LOOKED_AT = 2.0 ** np.arange(13)


def busy_moments(traced: Traced) -> tuple[Busy, ...]:
    """Return the moments at which a segment may hold most; none where one is that for all, or unknown.

    Over many tensor-parallel ranks those are what most is held at without all that they divide.
    """
    small, large = traced.small, traced.large
    if not small.moments or len(small.moments) != len(large.moments):
        return ()
    slope, fixed = _line(small, large)
    gradients = np.array(large.moments, dtype=float)[:, 1]
    pairs = ((small, large), *traced.rest.values(), traced.undivided)
    places = sorted({place for pair in pairs for place in _places(*_line(*pair), gradients)})
    found = [_moment(traced, place, Saved(replicated=slope[place], fixed=fixed[place])) for place in places]
    if [moment.working for moment in found] == [traced.bytes_of(lambda own: own.working)]:
        return ()
    return tuple(dict.fromkeys(found))


def _line(small: Measured, large: Measured) -> tuple[np.ndarray, np.ndarray]:
    """Return what is held at every moment: for each sample, and for any number."""
    few, many = (np.array(own.moments, dtype=float)[:, 0] for own in (small, large))
    slope = (many - few) / (SAMPLES[1] - SAMPLES[0])
    return slope, few - slope * SAMPLES[0]


def _moment(traced: Traced, place: int, whole: Saved) -> Busy:
    def held(own: Measured) -> float:
        return own.moments[place][0]

    shares = {
        name: share_of((held(traced.small), held(few)), (held(traced.large), held(many)))
        for name, (few, many) in traced.rest.items()
    }
    own = traced.large.moments[place][1] / max(traced.large.trainable, 1)
    return Busy(working=divided(whole, shares), meanwhile=min(own, 1.0))


def most_of(moments: Sequence[Busy], gradients: float) -> tuple[Busy, ...]:
    """Return those of several moments at which most is held, for some number of samples.

    Args:
        moments: some of the same block, or of blocks that are alike.
        gradients: of its parameters, bytes.
    """
    fixed, share = (
        np.array(column, dtype=float)
        for column in zip(*((each.working.fixed, each.meanwhile) for each in moments), strict=True)
    )
    slope = np.array([each.working.total for each in moments]) - fixed
    rest = np.array([each.working.replicated for each in moments])
    places = {place for part in (slope, rest) for place in _places(part, fixed, share * gradients)}
    return tuple(dict.fromkeys(moments[at] for at in sorted(places)))


def _places(slope: np.ndarray, fixed: np.ndarray, gradients: np.ndarray) -> list[int]:
    """Return where most is held, without gradients and with them."""
    held = slope * _LOOKED_AT[:, None] + fixed
    chosen = (*held.argmax(axis=1), *(held + gradients).argmax(axis=1))
    return sorted({int(at) for at in chosen})
