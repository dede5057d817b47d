"""FLOPs and seconds of one step."""

from parastrat.cost.step import time_columns, time_estimate

__all__ = ["time_columns", "time_estimate"]
