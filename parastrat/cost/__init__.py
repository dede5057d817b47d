"""FLOPs and seconds of one step."""

from parastrat.cost.blocks import BlockSeconds, block_seconds
from parastrat.cost.step import (
    mean_weights_s,
    micro_batch_s,
    step_s,
    time_columns,
    time_estimate,
    time_floor,
    weights_floor,
)

__all__ = [
    "BlockSeconds",
    "block_seconds",
    "mean_weights_s",
    "micro_batch_s",
    "step_s",
    "time_columns",
    "time_estimate",
    "time_floor",
    "weights_floor",
]
