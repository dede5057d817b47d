"""FLOPs and seconds of one step."""

from parastrat.cost.blocks import BlockSeconds, block_seconds
from parastrat.cost.step import step_s, time_columns, time_estimate, time_floor, work_floor

__all__ = [
    "BlockSeconds",
    "block_seconds",
    "step_s",
    "time_columns",
    "time_estimate",
    "time_floor",
    "work_floor",
]
