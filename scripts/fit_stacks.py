# ruff: noqa: INP001, T201 - a script, which reports by printing
"""Fit the constants of a stack to published step times, and print each with its range.

The mean absolute log error is minimised, every table of runs weighed alike, with a Gaussian prior around
the constants in ``profiles/stacks`` (``PRIORS``: how far each may move; published runs identify overlaps
weakly). One constant is moved at a time, in steps that shrink, until none helps. A constant's range is that
in which the loss stays within 2 % of its least. Nothing is written: a constant that moves is put into the
stack's profile by hand, with what was fitted to what.

Usage: python scripts/fit_stacks.py STACK [--every N] [--tables NAME...] [--dense]
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from parastrat.assess import assess
from parastrat.errors import ParastratError
from parastrat.measured import read_rows
from parastrat.measured.comparison import step_time
from parastrat.measured.jobs import MeasuredJob, job_of
from parastrat.measured.skipped import CannotPredictError

TABLE = Path(__file__).resolve().parents[1] / "benchmarks" / "data" / "published.csv"

#: by constant: one sigma of its prior, and whether that is of its logarithm
PRIORS: Mapping[str, tuple[float, bool]] = {
    "launches_per_operator": (0.7, True),
    "elementwise_factor": (0.35, True),
    "attention_factor": (0.3, True),
    "network_efficiency": (0.15, True),
    "fp8_cast_bytes": (0.35, True),
    "tp_overlap": (0.2, False),
    "zero_overlap": (0.2, False),
    "fsdp_overlap": (0.2, False),
}
#: so many rows outweigh the prior
_PRIOR_ROWS = 100
_STEPS = (1.0, 0.5, 0.25, 0.12)
_RANGE = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A published run and what it took."""

    table: str
    job: MeasuredJob
    seconds: float


def runs_of(stack: str, every: int, tables: list[str], *, dense: bool) -> list[Run]:
    """Return the runs of a stack that can be predicted and have a step time."""
    found = []
    rows = [row for row in read_rows(TABLE).rows if row.stack == stack and not (dense and row.moe_experts)]
    for row in rows[::every]:
        table, seconds = row.id.partition("-")[0], step_time(row)
        if seconds is None or (tables and table not in tables):
            continue
        try:
            found.append(Run(table=table, job=job_of(row), seconds=seconds))
        except (CannotPredictError, ParastratError):
            continue
    return found


def errors(runs: list[Run], constants: Mapping[str, float]) -> dict[str, list[float]]:
    """Return the log errors of every table under some constants."""
    found = defaultdict(list)
    for run in runs:
        stack = replace(run.job.facts.stack, **constants)
        case = assess(replace(run.job.facts, stack=stack), run.job.plan)
        found[run.table].append(math.log(case.estimate.time.step / run.seconds))
    return dict(found)


def moved(name: str, value: float, sigmas: float) -> float:
    """Return a constant so many sigmas of its prior further; overlaps stay shares."""
    sigma, logarithmic = PRIORS[name]
    if logarithmic:
        return value * math.exp(sigmas * sigma)
    return min(1.0, max(0.0, value + sigmas * sigma))


def distance(name: str, value: float, prior: float) -> float:
    """Return how many sigmas of its prior a constant has moved."""
    sigma, logarithmic = PRIORS[name]
    return (math.log(value / prior) if logarithmic else value - prior) / sigma


def fitted(runs: list[Run]) -> tuple[dict[str, float], Callable[[Mapping[str, float]], float]]:
    """Return the constants of the least loss, and the loss."""
    prior = {name: float(getattr(runs[0].job.facts.stack, name)) for name in PRIORS}

    def loss(constants: Mapping[str, float]) -> float:
        of_tables = errors(runs, constants).values()
        far = sum(distance(name, value, prior[name]) ** 2 for name, value in constants.items())
        mean = statistics.fmean(statistics.fmean(map(abs, own)) for own in of_tables)
        return mean + far / (2 * _PRIOR_ROWS)

    best, least = dict(prior), loss(prior)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for name in PRIORS:
                for sigmas in (-step, step):
                    tried = best | {name: moved(name, best[name], sigmas)}
                    if tried != best and (found := loss(tried)) < least - 1e-5:
                        best, least, improved = tried, found, True
    return best, loss


def range_of(name: str, best: Mapping[str, float], loss: Callable[[Mapping[str, float]], float]) -> str:
    """Return between which values of one constant the loss is near its least."""
    least, ends = loss(best), []
    for sign in (-1, 1):
        reached = best[name]
        for sigmas in (0.25, 0.5, 1.0, 2.0):
            value = moved(name, best[name], sign * sigmas)
            if loss({**best, name: value}) > _RANGE * least:
                break
            reached = value
        ends.append(f"{reached:.3g}")
    return " .. ".join(ends)


def told(of_tables: Mapping[str, list[float]]) -> str:
    """Return each table's errors in words."""
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
    given = parser.parse_args()
    runs = runs_of(given.stack, given.every, given.tables, dense=given.dense)
    print(f"before: {told(errors(runs, {}))}")
    best, loss = fitted(runs)
    print(f"after: {told(errors(runs, best))}")
    for name, value in best.items():
        prior = float(getattr(runs[0].job.facts.stack, name))
        print(
            f"{name}: {value:.3g} (prior {prior:.3g}; within 2 % of the loss: {range_of(name, best, loss)})"
        )


if __name__ == "__main__":
    main()
