"""Runs that others measured, predicted: how far off the estimates are, and what they correct."""

from parastrat.measured.comparison import compared
from parastrat.measured.fitting import fitted, runs_of
from parastrat.measured.rows import MeasuredRow, Table, read_rows

__all__ = ["MeasuredRow", "Table", "compared", "fitted", "read_rows", "runs_of"]
