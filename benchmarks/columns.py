"""Closed forms over many plans at once: processor time of a plan's memory, and of its step.

Usage: python benchmarks/columns.py

Of each job as many plans of its space as one pass takes, drawn at random; the least of some passes. A step
is that of plans whose meshes were met before, as a search meets each with many micro-batches and policies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from parastrat.cli.facts import resolved
from parastrat.cli.flags import JobFlags
from parastrat.cost import step_s
from parastrat.memory import memory_columns, memory_totals
from parastrat.search.bounded import Searched, searched
from parastrat.search.obeying import obeying
from parastrat.search.rows import Constraints
from parastrat.search.space import policies, recompute_columns, reshard_columns

JOBS = (
    ("llama-3.1-8b", "dgx-h100:8"),
    ("gpt3-175b", "dgx-a100:512"),
    ("llama-3.1-405b", "dgx-h100:2048"),
    ("deepseek-v3", "dgx-h100:2048"),
)
_PASSES = 5
_MOST = 40_000


def plans_of(space: Searched) -> Any:
    """Return plans that no rule about meshes forbids, at most ``_MOST``."""
    rows = reshard_columns(space.allowed.rows(np.arange(len(space.allowed.meshes.pp))))
    every = np.arange(len(rows.pp))
    plans = recompute_columns(rows, dict.fromkeys(policies(space.fixed), every))
    drawn = np.random.default_rng(0).permutation(len(plans.pp))[:_MOST]
    return plans.at(drawn)


def microseconds(call: Callable[[], object], plans: int) -> float:
    """Return the processor time of a plan, when what is kept between calls is there."""
    call()
    passes = []
    for _ in range(_PASSES):
        begun = time.process_time()
        call()
        passes.append(time.process_time() - begun)
    return min(passes) / plans * 1e6


def main() -> None:
    """Print a line for each job."""
    for model, on in JOBS:
        facts, fixed = resolved(JobFlags(model=model, on=on)).facts, Constraints()
        space = searched(facts, fixed, obeying(facts, fixed))
        plans = plans_of(space)
        count = len(plans.pp)
        totals = microseconds(partial(memory_totals, facts, plans), count)
        parts = microseconds(partial(memory_columns, facts, plans), count)
        steps = microseconds(lambda: step_s(facts, plans.joined({}), space.work.of(plans)), count)  # noqa: B023
        print(
            f"{model} on {on}, {count:,} plans: memory {totals:.2f} microseconds a plan, with its parts "
            f"{parts:.2f}; step {steps:.2f}"
        )


if __name__ == "__main__":
    main()
