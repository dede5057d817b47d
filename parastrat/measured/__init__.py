"""Runs that others measured, predicted: how far off the estimates are."""

from parastrat.measured.comparison import compared
from parastrat.measured.rows import MeasuredRow, Table, read_rows

__all__ = ["MeasuredRow", "Table", "compared", "read_rows"]
