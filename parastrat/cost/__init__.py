"""FLOPs and seconds of one step."""

from parastrat.cost.blocks import BlockSeconds, block_seconds
from parastrat.cost.floors import (
    Heaviest,
    heaviest_of,
    least_weights_s,
    micro_batch_s,
    time_floor,
    weights_floor,
)
from parastrat.cost.step import step_s, time_columns, time_estimate

__all__ = [
    "BlockSeconds",
    "Heaviest",
    "block_seconds",
    "heaviest_of",
    "least_weights_s",
    "micro_batch_s",
    "step_s",
    "time_columns",
    "time_estimate",
    "time_floor",
    "weights_floor",
]
