"""Seconds for which a pipeline rank waits: the bubble, by schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.cost.blocks import forward_s, whole_s
from parastrat.plan import PipelineSchedule
from parastrat.schedules import SPLITS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.columns import Columns
    from parastrat.units import Seconds


def bubble_s(c: Columns, others: Mapping[str, Any]) -> Seconds:
    """Return for how long a rank of a pipeline waits in a step; nothing without one.

    The first micro-batch must reach it and the last come back: it waits for one on every other rank, a
    chunk of it where there are several (arXiv:2104.04473, section 2.2, of ranks that are alike). Schedules
    that split backward fill most of this with gradients of weights. What is left was read off
    ``timeline.pipeline.run``, of equal stages whose gradients of inputs take longest: of ZBV exactly, of
    interleaved ones within 1 % of a step, of DualPipeV within 3.

    Args:
        c: the plans.
        others: of all other ranks together the seconds of one micro-batch, as ``BlockSeconds`` tells a
            rank's own.
    """
    whole = whole_s(others)
    waits = whole / c.virtual_stages
    split = is_any_of(c.pp_schedule, SPLITS)
    if split.any():
        waits = np.where(split, _split_s(c, others, whole), waits)
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
