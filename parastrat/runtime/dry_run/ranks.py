"""A plan dry-run: each kind of rank in a process of its own, on a process group that only pretends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.errors import WrapError
from parastrat.plan import Compile
from parastrat.ranks import pipeline_ranks
from parastrat.runtime.dry_run.apart import apart
from parastrat.runtime.dry_run.rank import OPTIMIZERS, Task, dry_run
from parastrat.runtime.preset_models import builder_of
from parastrat.runtime.refusals import check_plan

if TYPE_CHECKING:
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
        WrapError: the plan has an axis or an option that a dry run does not know yet.
        ModelError: the model cannot be built, or its forward needs values.
        LaunchError: the process ended without an answer.
    """
    return _run(Task(ref=ref, plan=plan, workload=workload, rank=rank))


def run_on_device(ref: str, plan: Plan, workload: Workload, rank: int, device: torch.device) -> DryRun:
    """Run the step of ``run_on_fakes`` with real tensors on a device: of a GPU, what its allocator held."""
    return _run(Task(ref=ref, plan=plan, workload=workload, rank=rank, device=str(device)))


def _run(task: Task) -> DryRun:
    _check(task.plan, task.workload)
    builder_of(task.ref)  # what cannot be built is told before anything starts
    return apart(dry_run, task)


def ranks_to_run(model: ModelSpec, plan: Plan) -> tuple[int, ...]:
    """Return one rank of each kind: places in a pipeline that hold other blocks; its first and its last."""
    pp = plan.mesh.pp
    places = {0, pp - 1} | {int(load.rank) for load in pipeline_ranks(model, pp, plan.virtual_stages)}
    return tuple(place * (plan.mesh.world_size // pp) for place in sorted(places))


def _check(plan: Plan, workload: Workload) -> None:
    mesh = plan.mesh
    check_plan(plan)
    unknown = [axis for axis in ("cp", "ep") if getattr(mesh, axis) > 1]
    if unknown:
        raise WrapError(
            f"{plan.strategy}: dry runs do not know {' and '.join(unknown)} yet",
            hint="they know one device, ddp, fsdp2, hsdp, tp and pp",
        )
    if plan.compile is not Compile.NONE:
        raise WrapError("a dry run does not compile", hint='set compile = "none" in the plan')
    if workload.optimizer not in OPTIMIZERS:
        known = ", ".join(sorted(OPTIMIZERS))
        raise WrapError(
            f"dry runs do not know the optimizer {workload.optimizer}", hint=f"they know {known}"
        )
