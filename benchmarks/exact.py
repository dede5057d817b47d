"""The search against every plan of random small spaces: the best of each rung, and the front.

Usage: python benchmarks/exact.py [CASES]

Spaces are written down without the search's code (tests/search/brute_force.py); rules, memory and time are
asked of all their plans at once.
"""

from __future__ import annotations

import random
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parastrat.assess import plans_table
from parastrat.case import Facts
from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.columns import Columns
from parastrat.cost import step_s
from parastrat.errors import ParastratError
from parastrat.estimate import Verdict
from parastrat.memory import memory_margin, memory_totals
from parastrat.profiles import model_names, node_names
from parastrat.rules import rejection_masks
from parastrat.search import Constraints, find_plan, memory_front
from parastrat.search.front import APART
from parastrat.tables import facts_columns

_BRUTE_FORCE = Path(__file__).resolve().parents[1] / "tests" / "search" / "brute_force.py"
#: of plans as near as this the simplest is shown
_NEAR = 1.005
_ROUNDING = 1 + 1e-9
_MOST_PLANS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Every plan that obeys the rules and fits with its margin: its rung, bytes and seconds."""

    plans: int
    rung: Any
    memory: Any
    step: Any


def every(job: Facts) -> Space | None:
    """Return the plans of a space; None of one that is too large, or empty."""
    plans = runpy.run_path(str(_BRUTE_FORCE))["every_plan"](job)
    if job.workload.sequence_length is None:
        # PS813, which is judged plan by plan: samples that are no sequences
        plans = [plan for plan in plans if plan.mesh.cp == 1]
    if not 0 < len(plans) <= _MOST_PLANS:
        return None
    columns = Columns({**facts_columns(job), **plans_table(plans)})
    memory = memory_totals(job, columns)
    capacity = job.hardware.device.usable_memory_bytes
    columns = columns.joined({"memory_total": memory, "memory_capacity": capacity})
    able = memory + memory_margin(job, memory) <= capacity
    for _, mask in rejection_masks(columns):
        able &= ~np.broadcast_to(mask, able.shape)
    rows = np.flatnonzero(able)
    step = step_s(job, columns.at(rows)) if len(rows) else np.zeros(0)
    rung = np.array([plans[row].rung for row in rows], dtype=np.int64)
    return Space(plans=len(plans), rung=rung, memory=memory[rows], step=step)


def faults(job: Facts, space: Space) -> list[str]:
    """Return where the search answers other than brute force."""
    found = {
        rung.rung: rung.case.estimate.time.step
        for rung in find_plan(job).rungs
        if rung.case is not None and rung.case.estimate.verdict is Verdict.FITS and rung.rung > 0
    }
    best = {
        int(rung): float(space.step[space.rung == rung].min()) for rung in set(space.rung.tolist()) if rung
    }
    said = [
        f"rung {rung}: {found.get(rung)} s, brute force {best.get(rung)} s"
        for rung in sorted(best.keys() | found.keys())
        if not (
            rung in best
            and rung in found
            and best[rung] <= found[rung] * _ROUNDING
            and found[rung] <= _NEAR * best[rung] * _ROUNDING
        )
    ]
    if len(space.step):
        said += _front_faults(job, space)
    return said


def _front_faults(job: Facts, space: Space) -> list[str]:
    front = [
        (case.estimate.memory.total, case.estimate.time.step) for case in memory_front(job, Constraints())
    ]
    stood_for = np.zeros(len(space.step), dtype=bool)
    beaten = []
    for memory, step in front:
        stood_for |= (memory * (1 - APART) <= space.memory) & (step <= _NEAR * space.step * _ROUNDING)
        beaten += [f"front: {memory} B in {step} s is beaten"] * bool(
            np.any((space.memory <= memory) & (_NEAR * space.step * _ROUNDING < step))
        )
    missing = int((~stood_for).sum())
    return beaten + ([f"front: {missing} plans are not stood for"] if missing else [])


def drawn(draw: random.Random) -> Facts | None:
    """Return a small job of a model without experts; None of one that cannot be."""
    model, node = draw.choice(model_names()), draw.choice(node_names())
    flags = JobFlags(
        model=model,
        on=f"{node}:{draw.choice((1, 2, 3, 4))}",
        global_batch=draw.choice((4, 8, 12, 32, 64)),
    )
    try:
        facts = resolved(flags).facts
    except ParastratError:
        return None
    return None if facts.model.experts or facts.hardware.world_size == 1 else facts


def main() -> None:
    """Print each difference, and how many cases are equal."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    draw, equal, cases, plans, fitting = random.Random(0), 0, 0, 0, 0  # noqa: S311 - can be repeated
    while cases < wanted:
        job = drawn(draw)
        space = None if job is None else every(job)
        if job is None or space is None:
            continue
        said = faults(job, space)
        cases, plans, equal = cases + 1, plans + space.plans, equal + (not said)
        fitting += bool(len(space.step))
        for fault in said:
            print(f"{job.model.name} on {job.hardware.name}: {fault}", flush=True)
    print(f"{equal} of {cases} cases equal, {plans:,} plans; in {fitting} cases something fits")
    sys.exit(equal < cases)


if __name__ == "__main__":
    main()
