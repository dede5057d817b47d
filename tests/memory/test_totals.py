"""Totals of rows whose pipelines differ in how many ranks they tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.memory import memory_totals, totals
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute
from parastrat.profiles import load_hardware, load_stack
from parastrat.ranks import ranks_of
from parastrat.sources import load_source
from parastrat.tables import facts_columns, plan_columns
from parastrat.workload import Optimizer, Precision, Workload


def plans() -> list[Plan]:
    """Many plans of one rank, a few of sixteen."""
    fields = {"precision": Precision.BF16_MIXED, "backend": Backend.NCCL}
    alone = [
        Plan(
            mesh=Mesh(dp_shard=16 // tp, tp=tp),
            micro_batch_size=size,
            gradient_accumulation_steps=steps,
            recompute=policy,
            **fields,
        )
        for tp in (1, 2, 4, 8)
        for size in (1, 2, 4, 8)
        for steps in (1, 2)
        for policy in Recompute
    ]
    piped = [
        Plan(
            mesh=Mesh(pp=16),
            micro_batch_size=size,
            gradient_accumulation_steps=32,
            pp_schedule=PipelineSchedule.ONE_F_ONE_B,
            **fields,
        )
        for size in (1, 2)
    ]
    return [*alone, *piped]


def test_rows_of_few_ranks_are_told_apart_and_found_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "_WORTH", 1000)
    source, stack, given = load_source("nemotron-h-47b"), load_stack("torch"), plans()
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
    ranks = ranks_of(facts.model, columns)
    apart = totals._shallow(ranks.counts, len(ranks.table.moments.kinds))
    assert apart.tolist() == [plan.mesh.pp == 1 for plan in given]
    alone = [memory_totals(facts, columns.at(np.array([row])))[0] for row in range(len(given))]
    assert memory_totals(facts, columns).tolist() == alone


def test_few_rows_are_not_worth_it() -> None:
    assert totals._shallow(np.array([1, 1, 16]), 8) is None
    assert totals._shallow(np.full(100_000, 16), 8) is None
