"""A few micro-batches of a pipeline hold as much as all of a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from drawn import drawn

from parastrat.dry_run import DryRun
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Shard
from parastrat.runtime.dry_run import rank as rank_module
from parastrat.runtime.dry_run.apart import apart
from parastrat.runtime.dry_run.few import with_few_micro_batches
from parastrat.runtime.dry_run.rank import Task, dry_run
from parastrat.schedules import SINGLE
from parastrat.workload import Optimizer, Precision, Workload

HERE = Path(__file__).with_name("models.py")
SCHEDULES = list(PipelineSchedule)
#: by schedule, of how many micro-batches a step is run for two ranks of two stages, or one
FEW = {
    PipelineSchedule.GPIPE: 14,
    PipelineSchedule.LOOPED_BFS: 14,
    PipelineSchedule.ONE_F_ONE_B: 3,
    PipelineSchedule.INTERLEAVED: 6,
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: 6,
    PipelineSchedule.ZBV: 5,
    PipelineSchedule.DUAL_PIPE_V: 5,
}


def plan(schedule: PipelineSchedule, steps: int = 14, pp: int = 2, shard: Shard = Shard.NONE) -> Plan:
    return Plan(
        mesh=Mesh(pp=pp) if shard is Shard.NONE else Mesh(pp=pp, dp_shard=2),
        shard=shard,
        micro_batch_size=2,
        gradient_accumulation_steps=steps,
        precision=Precision.FP32,
        backend=Backend.GLOO,
        pp_schedule=schedule,
        virtual_stages=1 if schedule in SINGLE else 2,
    )


def few(own: Plan) -> int:
    return with_few_micro_batches(own).gradient_accumulation_steps


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_as_few_as_reach_all_moments_are_run(schedule: PipelineSchedule) -> None:
    assert few(plan(schedule)) == FEW[schedule]
    # no more of a longer step, and never more than there are
    all_at_once = FEW[schedule] == 14
    assert few(plan(schedule, 400)) == (400 if all_at_once else FEW[schedule])
    assert [few(plan(schedule, steps)) for steps in (1, 2, 4)] == [1, 2, min(4, FEW[schedule])]


def test_without_a_pipeline_memory_repeats_from_the_second_on() -> None:
    own = replace(plan(PipelineSchedule.ONE_F_ONE_B), mesh=Mesh(dp_shard=2), pp_schedule=None)
    assert [few(replace(own, gradient_accumulation_steps=steps)) for steps in (1, 2, 9)] == [1, 2, 2]


def test_rounds_of_chunks_are_as_long_as_the_steps() -> None:
    # ten micro-batches of four ranks are two rounds of five, as are fifteen three, but not twelve
    assert few(plan(PipelineSchedule.INTERLEAVED, 40, pp=4)) == 12
    own = plan(PipelineSchedule.INTERLEAVED, 15, pp=4)
    assert few(own) == 15
    assert few(plan(PipelineSchedule.INTERLEAVED, 10, pp=4)) == 10


#: pairs of ranks and schedules, and whether parameters are sharded
CELLS = [(schedule, shard) for schedule in SCHEDULES for shard in (Shard.NONE, Shard.PARAMETERS)]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("schedule", "shard"), drawn(CELLS, 2))
def test_a_rank_holds_as_much_as_with_all(schedule: PipelineSchedule, shard: Shard, rank: int) -> None:
    own = plan(schedule, shard=shard)
    job = Workload(
        global_batch_size=own.global_batch_size,
        sequence_length=8,
        optimizer=Optimizer.ADAMW,
        precision=own.precision,
    )
    task = Task(ref=f"{HERE}:Long", plan=own, workload=job, rank=rank * own.mesh.world_size // 2)
    run, whole = apart(dry_run, task), apart(_with_all_micro_batches, task)
    assert (run.micro_batches, whole.micro_batches) == (FEW[schedule], 14)
    # torch keeps the number of each micro-batch, 8 bytes
    assert run.forward_backward == pytest.approx(whole.forward_backward, abs=400)
    assert run.optimizer_step == pytest.approx(whole.optimizer_step, abs=400)


def _with_all_micro_batches(task: Task) -> DryRun:
    with patch.object(rank_module, "with_few_micro_batches", lambda own: own):
        return dry_run(task)
