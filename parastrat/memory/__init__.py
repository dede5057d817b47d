"""Bytes that the worst rank of a plan needs at its peak."""

from parastrat.memory.parts import PARTS
from parastrat.memory.peaks import (
    memory_columns,
    memory_estimate,
    memory_margin,
    memory_totals,
    plan_memory,
)

__all__ = ["PARTS", "memory_columns", "memory_estimate", "memory_margin", "memory_totals", "plan_memory"]
