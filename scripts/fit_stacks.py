# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Fit the constants of a stack to published step times, and print each with its range.

As ``parastrat validate -o`` corrects a stack, but those constants that its profile calls fitted, or others
with ``--only``. Nothing is written: a constant that moves is put into the profile by hand, with what was
fitted to what.

Usage: python scripts/fit_stacks.py STACK [--every N] [--tables NAME...] [--dense] [--only CONSTANT...]
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from parastrat.measured import fitted, read_rows, runs_of
from parastrat.measured.constants import EVERY_CONSTANT, constants_of
from parastrat.measured.fitting import Run
from parastrat.measured.models import has_experts
from parastrat.profiles import load_stack

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "published.csv"


def told(runs: Sequence[Run], errors: Sequence[float]) -> str:
    """Return each table's log errors in words."""
    of_tables = defaultdict(list)
    for run, error in zip(runs, errors, strict=True):
        of_tables[run.table].append(error)
    return "; ".join(
        f"{table} {len(own)} rows, mean |log error| {statistics.fmean(map(abs, own)):.3f}, "
        f"bias {statistics.fmean(own):+.3f}"
        for table, own in of_tables.items()
    )


def main() -> None:
    """Fit, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("stack")
    parser.add_argument("--every", type=int, default=1, help="take every N-th row alone")
    parser.add_argument("--tables", nargs="*", default=[])
    parser.add_argument("--dense", action="store_true", help="leave mixtures of experts out")
    names = [each.name for each in EVERY_CONSTANT]
    parser.add_argument("--only", nargs="+", choices=names, help="constants that may move")
    given = parser.parse_args()
    every = [
        run
        for run in runs_of(row for row in read_rows(TABLE).rows if not (given.dense and has_experts(row)))
        if run.stack == given.stack
    ]
    runs = [run for run in every[:: given.every] if not given.tables or run.table in given.tables]
    stack = load_stack(given.stack)
    devices = (run.job.facts.hardware.device.name for run in runs)
    moving = [each for each in EVERY_CONSTANT if each.name in (given.only or ())]
    moving = moving or constants_of(stack, devices)
    fit = fitted(runs, stack, moving)
    print(f"before: {told(runs, fit.before)}")
    print(f"after: {told(runs, fit.after)}")
    for each in fit.constants:
        print(f"{each.name}: {each.after:.3g} (prior {each.before:.3g}; {each.low:.3g} .. {each.high:.3g})")


if __name__ == "__main__":
    main()
