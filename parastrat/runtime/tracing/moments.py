"""At which of its moments a block holds most, for any number of samples.

What is alive at a moment is a straight line over the samples: what has the size of weights stays,
activations grow. Few samples show most where weights and their gradients are; many, where activations are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parastrat.model import Busy
from parastrat.runtime.tracing.lifetimes import Measured
from parastrat.runtime.tracing.samples import SAMPLES, line
from parastrat.saved import Saved

#: micro-batches at which it is looked at which moment holds most
_LOOKED_AT = 2.0 ** np.arange(13)


def busy_moments(small: Measured, large: Measured) -> tuple[Busy, ...]:
    """Return the moments at which a segment may hold most; none where one is that for all, or unknown.

    Args:
        small: in a trace of ``SAMPLES[0]`` samples.
        large: in one of ``SAMPLES[1]``.
    """
    if not small.moments or len(small.moments) != len(large.moments):
        return ()
    few, many = np.array(small.moments, dtype=float), np.array(large.moments, dtype=float)
    slope = (many[:, 0] - few[:, 0]) / (SAMPLES[1] - SAMPLES[0])
    fixed = few[:, 0] - slope * SAMPLES[0]
    share = np.minimum(many[:, 1] / max(large.trainable, 1), 1.0)
    found = [
        Busy(working=Saved(replicated=float(slope[at]), fixed=float(fixed[at])), meanwhile=float(share[at]))
        for at in _places(slope, fixed, many[:, 1])
    ]
    if [moment.working for moment in found] == [line(small.working, large.working)]:
        return ()
    return tuple(dict.fromkeys(found))


def most_of(moments: Sequence[Busy], gradients: float) -> tuple[Busy, ...]:
    """Return those of several moments at which most is held, for some number of samples.

    Args:
        moments: some of the same block, or of blocks that are alike.
        gradients: of its parameters, bytes.
    """
    slope, fixed, share = (
        np.array(column, dtype=float)
        for column in zip(
            *((each.working.replicated, each.working.fixed, each.meanwhile) for each in moments),
            strict=True,
        )
    )
    return tuple(dict.fromkeys(moments[at] for at in _places(slope, fixed, share * gradients)))


def _places(slope: np.ndarray, fixed: np.ndarray, gradients: np.ndarray) -> list[int]:
    """Return where most is held, without gradients and with them."""
    held = slope * _LOOKED_AT[:, None] + fixed
    chosen = (*held.argmax(axis=1), *(held + gradients).argmax(axis=1))
    return sorted({int(at) for at in chosen})
