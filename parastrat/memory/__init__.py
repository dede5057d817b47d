"""Bytes that the worst rank of a plan needs at its peak."""

from parastrat.memory.peaks import PARTS, memory_columns, memory_estimate, memory_margin
from parastrat.memory.totals import memory_totals

__all__ = ["PARTS", "memory_columns", "memory_estimate", "memory_margin", "memory_totals"]
