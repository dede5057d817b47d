"""Every plan of a small space, one by one, written down without the search's code."""

from __future__ import annotations

from itertools import product

from parastrat.assess import assess, columns_of
from parastrat.case import Case, Facts
from parastrat.estimate import Verdict
from parastrat.finding import Severity
from parastrat.plan import Backend, Compile, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.rules import findings_of
from parastrat.rules.backend import decide_backend

SPLIT = (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, PipelineSchedule.ZBV)
SCHEDULES = (
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.INTERLEAVED, 4),
    (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 1),
    (PipelineSchedule.ZBV, 2),
)


def every_plan(job: Facts) -> list[Plan]:
    """Return all plans of the searched space, written down without its code."""
    world, batch = job.hardware.world_size, job.workload.global_batch_size
    degrees = [degree for degree in range(1, world + 1) if world % degree == 0]
    plans = []
    for pp, replicate, shard, cp, tp in product(degrees, repeat=5):
        if pp * replicate * shard * cp * tp != world or batch % (replicate * shard):
            continue
        if (cp > 1 or tp > 1) and job.model.heads is None:
            continue
        share = batch // (replicate * shard)
        sharded = shard * cp > 1
        for size, recompute in product(
            (1, 2, 4, 8, 16, 32, 64), (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
        ):
            if share % size:
                continue
            steps = share // size
            for reshard, (schedule, chunks) in product((True, False), SCHEDULES):
                if reshard and (pp > 1 or not sharded):
                    continue
                if schedule is not PipelineSchedule.ONE_F_ONE_B and (pp == 1 or steps % pp):
                    continue
                if schedule in SPLIT and not job.stack.splits_backward:
                    continue
                plans.append(
                    Plan(
                        mesh=Mesh(pp=pp, dp_replicate=replicate, dp_shard=shard, cp=cp, tp=tp),
                        micro_batch_size=size,
                        gradient_accumulation_steps=steps,
                        precision=job.workload.precision,
                        backend=decide_backend(job.hardware).backend or Backend.GLOO,
                        shard=Shard.PARAMETERS if sharded else Shard.NONE,
                        reshard_after_forward=reshard,
                        sequence_parallel=shares(job, cp, tp),
                        loss_parallel=tp > 1,
                        recompute=recompute,
                        compile=Compile.BLOCK if job.stack.kernels.compiled else Compile.NONE,
                        pp_schedule=schedule if pp > 1 else None,
                        virtual_stages=chunks,
                    )
                )
    return plans


def shares(job: Facts, cp: int, tp: int) -> bool:
    """Return whether tp ranks have equally many positions each, where a model has its own."""
    positions = job.model.positions
    return tp > 1 and (positions is None or (positions > 0 and positions % (cp * tp) == 0))


def runnable(case: Case) -> bool:
    errors = [f for f in findings_of(case, columns_of(case)) if f.severity is Severity.ERROR]
    return not errors and case.estimate.verdict is Verdict.FITS


def brute_force(job: Facts) -> dict[int, float]:
    """Return the fastest step of every rung."""
    best: dict[int, float] = {}
    for plan in every_plan(job):
        case = assess(job, plan)
        if runnable(case):
            best[plan.rung] = min(best.get(plan.rung, float("inf")), case.estimate.time.step)
    return best
