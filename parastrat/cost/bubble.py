"""Seconds for which a pipeline rank waits: the bubble, by schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.cost.blocks import WHOLE, forward_s, whole_s
from parastrat.elementwise import taken
from parastrat.plan import PipelineSchedule
from parastrat.schedules import SPLITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.columns import Columns
    from parastrat.units import Seconds

#: of a micro-batch what decides how schedules that split backward fill it
_PHASES = ("forward", "sent_forward", "weights")


def bubble_s(c: Columns, own: Mapping[str, Any], every: Mapping[str, Any]) -> Seconds:
    """Return for how long a rank of a pipeline waits in a step; nothing without one.

    The first micro-batch must reach it and the last come back: it waits for one on every other rank, a
    chunk of it where there are several (arXiv:2104.04473, section 2.2, of ranks that are alike). Schedules
    that split backward fill most of this with gradients of weights. What is left was read off
    ``timeline.pipeline.run``, of equal stages whose gradients of inputs take longest: of ZBV exactly, of
    interleaved ones within 1 % of a step, of DualPipeV within 3.

    Args:
        c: the plans.
        own: the rank's seconds of one micro-batch, as ``BlockSeconds`` tells them.
        every: those of all ranks together.
    """
    whole = whole_s({part: every[part] - own[part] for part in WHOLE})
    waits = whole / c.virtual_stages
    split = np.flatnonzero(is_any_of(c.pp_schedule, SPLITS))
    if len(split):
        others = {part: taken(every[part], split) - taken(own[part], split) for part in _PHASES}
        waits[..., split] = _split_s(c.at(split), others, whole.take(split, axis=-1))
    return np.where(c.pp > 1, waits, 0.0)


def _split_s(c: Columns, others: Mapping[str, Any], whole: Seconds) -> Seconds:
    forward, weights = forward_s(others), others["weights"]
    inputs = whole - forward - weights
    filled = np.maximum(forward + inputs - weights, forward)
    bent = np.maximum(inputs, 2 * (inputs - weights))
    # ranks between the ends wait for what inputs take longer than forwards as well
    between = np.maximum(c.pp - 2, 0) / np.maximum(c.pp - 1, 1)
    dual = filled + between * np.maximum(inputs - forward, 0)
    waits = np.where(c.pp_schedule == code_of(PipelineSchedule.ZBV), bent, filled)
    waits = np.where(c.pp_schedule == code_of(PipelineSchedule.DUAL_PIPE_V), dual, waits)
    return waits / c.virtual_stages
