"""Plans in arrays, whose pipelines differ in how many ranks they tell apart, and one by one."""

from __future__ import annotations

import numpy as np
import pytest

from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.memory import PARTS, memory_columns, memory_estimate, memory_totals, plan_memory
from parastrat.memory.plans import READ
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.sources import load_source
from parastrat.tables import facts_columns, plan_columns, sized_columns
from parastrat.workload import Optimizer, Precision, Workload


def plans() -> list[Plan]:
    """Many plans of one rank, and some of sixteen, whose virtual stages may take turns."""
    fields = {"precision": Precision.BF16_MIXED, "backend": Backend.NCCL}
    alone = [
        Plan(
            mesh=Mesh(dp_shard=16 // tp, tp=tp),
            shard=shard,
            micro_batch_size=size,
            gradient_accumulation_steps=steps,
            recompute=policy,
            **fields,
        )
        for tp in (1, 2, 4, 8)
        for size in (1, 2, 4, 8)
        for steps in (1, 2)
        for policy in Recompute
        for shard in (Shard.NONE, Shard.PARAMETERS)
    ]
    schedules = {
        PipelineSchedule.GPIPE: 1,
        PipelineSchedule.ONE_F_ONE_B: 1,
        PipelineSchedule.INTERLEAVED: 2,
        PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: 1,
        PipelineSchedule.ZBV: 2,
    }
    piped = [
        Plan(
            mesh=Mesh(pp=16 // shards, dp_shard=shards),
            micro_batch_size=size,
            gradient_accumulation_steps=steps,
            shard=Shard.PARAMETERS if shards > 1 else Shard.NONE,
            pp_schedule=schedule,
            virtual_stages=chunks,
            recompute=policy,
            **fields,
        )
        for size in (1, 2)
        for policy in (Recompute.NONE, Recompute.FULL)
        for schedule, chunks in schedules.items()
        for shards in (1, 2)
        for steps in (16, 64)
    ]
    return [*alone, *piped]


@pytest.mark.parametrize("model", ["nemotron-h-47b", "llama-3.1-8b", "gemma-3-4b"])
def test_plans_are_found_alone_as_together_and_with_others_alike(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, stack, given = load_source(model), load_stack("torch"), plans()
    assert source is not None
    facts = Facts(
        model=source.at(4096, Precision.BF16_MIXED, stack.kernels),
        hardware=load_hardware("dgx-2:1"),
        workload=Workload(
            global_batch_size=64,
            sequence_length=4096,
            optimizer=Optimizer.ADAMW,
            precision=Precision.BF16_MIXED,
        ),
        stack=stack,
    )
    rows = [plan_columns(plan) for plan in given]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    columns = Columns({**facts_columns(facts), **table})
    each = [memory_columns(facts, columns.at(np.array([row]))) for row in range(len(given))]
    totals = [memory_totals(facts, columns.at(np.array([row])))[0] for row in range(len(given))]
    for plan, row in zip(given, each, strict=True):
        assert plan_memory(facts, plan) == memory_estimate(row, 0)
    for few, many in ((8, 5000), (0, 5000), (0, 20)):
        monkeypatch.setattr("parastrat.memory.peaks._FEW", few)
        monkeypatch.setattr("parastrat.memory.several._MANY", many)
        monkeypatch.setattr("parastrat.memory.several._ALIKE", many)
        together = memory_columns(facts, columns)
        for part in PARTS:
            assert together[part].tolist() == [int(own[part][0]) for own in each]
        assert memory_totals(facts, columns).tolist() == totals


def test_the_columns_that_are_read_of_a_row_are_those_of_a_plan() -> None:
    assert sorted(READ) == sorted(sized_columns(plans()[0]))
