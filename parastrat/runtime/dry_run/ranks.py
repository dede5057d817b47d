"""A plan dry-run: each kind of rank in a process of its own, on a process group that only pretends."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from parastrat.errors import WrapError
from parastrat.plan import PipelineSchedule
from parastrat.ranks import pipeline_ranks
from parastrat.runtime.dry_run.apart import apart
from parastrat.runtime.dry_run.rank import OPTIMIZERS, Task, dry_run, ways_of
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.refusals import check_plan
from parastrat.schedules import V_SHAPED, schedule_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from parastrat.dry_run import DryRun
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.workload import Workload


def run_on_fakes(ref: str, plan: Plan, workload: Workload, rank: int = 0) -> DryRun:
    """Run one optimizer step of one of a plan's ranks, without the others and without memory.

    The model is wrapped by what ``auto_parallelize`` wraps with, on as many ranks as the plan has; all
    ranks of a plan without a pipeline hold and send the same, and all of one place in it.

    Args:
        ref: MODEL: ``path.py:callable``, ``package.module:callable``, a Hugging Face config, or a preset
            that transformers can build.
        plan: of any number of ranks.
        workload: its sequence length and optimizer.
        rank: of the plan's ranks; those of a pipeline's first place come first, then the second's.

    Raises:
        WrapError: ``auto_parallelize`` does not apply the plan, or a dry run does not know its optimizer.
        ModelError: the model cannot be built, or its forward needs values.
        LaunchError: the process ended without an answer.
    """
    return apart(dry_run, _checked(Task(ref=ref, plan=plan, workload=workload, rank=rank)))


def run_on_device(ref: str, plan: Plan, workload: Workload, rank: int, device: torch.device) -> DryRun:
    """Run the step of ``run_on_fakes`` with real tensors on a device: of a GPU, what its allocator held."""
    task = Task(ref=ref, plan=plan, workload=workload, rank=rank, device=str(device))
    return apart(dry_run, _checked(task))


def run_kinds(ref: str, plan: Plan, workload: Workload, ranks: Sequence[int]) -> tuple[DryRun, ...]:
    """Run the step of ``run_on_fakes`` on several ranks: as many at once as there are processors.

    The way of the forward and where it is cut are found once for all of them.
    """
    first = _checked(Task(ref=ref, plan=plan, workload=workload, rank=ranks[0]))
    ways = apart(ways_of, first) if plan.mesh.pp > 1 and len(ranks) > 1 else None
    tasks = [replace(first, rank=rank, ways=ways) for rank in ranks]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=cores) as pool:
        return tuple(pool.map(partial(apart, dry_run), tasks))


def _checked(task: Task) -> Task:
    _check(task.plan, task.workload)
    builder_of(task.ref)  # what cannot be built is told before anything starts
    return task


def ranks_to_run(model: ModelSpec, plan: Plan) -> tuple[int, ...]:
    """Return one rank of each kind: places in a pipeline that hold other blocks; its first and its last."""
    pp = plan.mesh.pp
    bent = schedule_of(plan) in V_SHAPED
    loads = pipeline_ranks(model, pp, plan.virtual_stages, bent=bent)
    places = {0, pp - 1} | {int(load.rank) for load in loads}
    if schedule_of(plan) is PipelineSchedule.INTERLEAVED_ZERO_BUBBLE:
        places.add(max(pp - 2, 0))  # of equal ranks the last has most weights that wait for gradients
    return tuple(place * (plan.mesh.world_size // pp) for place in sorted(places))


def _check(plan: Plan, workload: Workload) -> None:
    check_plan(plan)  # what nobody wraps, expert parallelism among it, cannot be dry-run either
    if workload.optimizer not in OPTIMIZERS:
        known = ", ".join(sorted(OPTIMIZERS))
        raise WrapError(
            f"dry runs do not know the optimizer {workload.optimizer}", hint=f"they know {known}"
        )
