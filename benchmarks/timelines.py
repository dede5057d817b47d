"""Steps of plans as they pass, beside their estimates in closed form, and beside what was measured.

Usage: python benchmarks/timelines.py [JOBS]

The first table is of the plans that the answers to JOBS jobs (40) show, drawn from every preset on 1, 8
and 128 of every node: by strategy or schedule, how far the timeline's step is from the estimate's. The
second is of published runs on several devices: the step's error by either, of a pipeline with the
transfers between stages that the timeline hides.
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, median

import sweep

from parastrat.assess import assess
from parastrat.case import Case
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.errors import ParastratError
from parastrat.measured import read_rows
from parastrat.measured.comparison import step_time
from parastrat.measured.jobs import job_of
from parastrat.measured.skipped import CannotPredictError
from parastrat.search import find_plan
from parastrat.timeline import timeline_of

PUBLISHED = Path(__file__).resolve().parent / "data" / "published.csv"
_SEED = 20


def step_s(case: Case) -> float | None:
    """Return a plan's step by its timeline, and what that leaves out by the estimate; None without one."""
    timeline, time = timeline_of(case), case.estimate.time
    if timeline is None:
        return None
    beside = time.dp_exposed if case.plan.mesh.pp > 1 else 0.0
    return timeline.seconds + time.optimizer + case.stack.step_constant_s + beside


def kind_of(case: Case) -> str:
    """Return what decides how a plan's step passes."""
    plan = case.plan
    return plan.pp_schedule.value if plan.pp_schedule is not None else plan.strategy.split("+")[0]


def shown_plans(count: int) -> Iterator[Case]:
    """Yield the plans of answers to some jobs."""
    for model, on in random.Random(_SEED).sample(sweep.jobs(), count):  # noqa: S311 - a draw
        job = resolved(JobFlags(model=model, on=on))
        result = find_plan(job.facts, model_at=job.model_at)
        yield from (case for case in (result.chosen, *result.alternatives) if case is not None)


def of_shown(count: int) -> None:
    """Print how far timelines are from estimates."""
    apart: dict[str, list[float]] = defaultdict(list)
    for case in shown_plans(count):
        step = step_s(case)
        if step is not None:
            apart[kind_of(case)].append(step / case.estimate.time.step - 1)
    print(f"{'plans of':24} {'number':>6} {'median':>8} {'90th percentile':>16} {'bias':>8}")
    for kind, errors in sorted(apart.items()):
        sizes = sorted(abs(error) for error in errors)
        print(
            f"{kind:24} {len(errors):6} {median(sizes):8.2%} {sizes[int(0.9 * len(sizes))]:16.2%} "
            f"{fmean(errors):+8.2%}"
        )


def of_published() -> None:
    """Print the errors of published runs' steps, by estimates and by timelines."""
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    left_out = 0
    for row in read_rows(PUBLISHED).rows:
        try:
            job = job_of(row)
            case = assess(job.facts, job.plan)
            step = step_s(case)
        except (CannotPredictError, ParastratError):
            left_out += 1
            continue
        measured = step_time(row, job.plan.global_batch_size)
        if measured is None or step is None:
            left_out += 1
            continue
        errors[f"{row.id.rpartition('-')[0]}, {case.stack.name}, {kind_of(case)}"].append(
            (abs(case.estimate.time.step / measured - 1), abs(step / measured - 1))
        )
    print(f"\n{'runs of':32} {'number':>6} {'estimate':>20} {'timeline':>20}   (median, mean)")
    for kind, pairs in sorted(errors.items()):
        told = [f"{median(own):9.1%} {fmean(own):9.1%}" for own in zip(*pairs, strict=True)]
        print(f"{kind:32} {len(pairs):6} {told[0]:>20} {told[1]:>20}")
    print(f"{left_out} rows left out: on one device, not predicted, or without a step's time")


def main() -> None:
    """Print both tables."""
    of_shown(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
    of_published()


if __name__ == "__main__":
    main()
