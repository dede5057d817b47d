"""FLOPs and seconds of one step."""

from parastrat.cost.step import time_columns, time_estimate, time_floor, work_floor

__all__ = ["time_columns", "time_estimate", "time_floor", "work_floor"]
