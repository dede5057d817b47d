"""Code for plans of a kind, beside formulas that are run for each."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from memory.drawing import choices
from parastrat.case import Facts
from parastrat.memory import plan_memory, shortcuts
from parastrat.memory.alone import parts_alone, plan_alone
from parastrat.memory.plans import job_of
from parastrat.memory.shortcuts import parts_of_plan, shortcuts_of
from parastrat.plan import ContextMethod, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.schedules import V_SHAPED
from parastrat.sources import load_source
from parastrat.tables import sized_columns
from parastrat.workload import Optimizer, Precision, Workload


def _facts(model: str, stack: str, on: str, precision: Precision = Precision.BF16_MIXED) -> Facts:
    source, own = load_source(model), load_stack(stack)
    assert source is not None
    tokens = None if model == "resnet-50" else 4096
    return Facts(
        model=source.at(tokens, precision, own.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=64, sequence_length=tokens, optimizer=Optimizer.ADAMW, precision=precision
        ),
        stack=own,
    )


def _drawn(draw: random.Random) -> Plan:
    """Return a plan with any choices."""
    ranks = draw.choice((1, 1, 2, 4))
    schedule = None if ranks == 1 else draw.choice(tuple(PipelineSchedule))
    several = schedule is not None and "interleaved" in schedule.value
    return _sized(
        draw,
        Plan(
            mesh=Mesh(pp=ranks),
            micro_batch_size=1,
            gradient_accumulation_steps=1,
            **choices(draw),
            cp_method=draw.choice(tuple(ContextMethod)),
            pp_schedule=schedule,
            virtual_stages=2 if schedule in V_SHAPED or several else 1,
        ),
    )


def _sized(draw: random.Random, plan: Plan) -> Plan:
    """Return a plan with other sizes."""
    mesh = replace(
        plan.mesh,
        dp_replicate=draw.choice((1, 2)),
        dp_shard=draw.choice((1, 8)),
        cp=draw.choice((1, 2)),
        tp=draw.choice((1, 5, 8)),
        ep=draw.choice((1, 8)),
    )
    return replace(
        plan,
        mesh=mesh,
        micro_batch_size=draw.choice((1, 3)),
        gradient_accumulation_steps=draw.choice((1, 2, 8, 32)),
    )


@pytest.mark.parametrize(
    "stack", ["torch", "torch-compile", "fsdp1", "megatron-core", "megatron-deepspeed"]
)
@pytest.mark.parametrize(
    "model", ["llama-3.1-8b", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt2", "nemotron-h-47b", "resnet-50"]
)
@pytest.mark.parametrize("on", ["dgx-h100:8", "cpu"])
def test_code_returns_what_formulas_do_to_the_last_bit(
    model: str, stack: str, on: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcuts, "_OFTEN", 0)
    job, draw = job_of(_facts(model, stack, on)), random.Random(model + stack + on)  # noqa: S311 - as always
    for _ in range(3):
        plan = _drawn(draw)
        for _ in range(10):
            plan = _sized(draw, plan)
            assert list(parts_of_plan(job, sized_columns(plan))) == list(parts_alone(plan_alone(job, plan)))


def test_code_is_written_as_soon_as_many_plans_of_a_kind_were_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "_OFTEN", 3)
    facts, draw = _facts("llama-3.1-8b", "torch", "dgx-h100:8"), random.Random(0)  # noqa: S311 - as always
    plan = replace(_drawn(draw), mesh=Mesh(dp_shard=8), shard=Shard.PARAMETERS, pp_schedule=None)
    others = [replace(plan, micro_batch_size=size) for size in range(1, 6)]
    found = [plan_memory(facts, other) for other in others]
    (kind,) = shortcuts_of(job_of(facts)).values()
    assert kind.met == 3
    assert kind.codes
    assert found == [plan_memory(facts, other) for other in others]
    plan_memory(facts, replace(plan, micro_batch_size=2, mesh=Mesh(dp_shard=8, tp=2)))
    assert len(shortcuts_of(job_of(facts))) == 1
    plan_memory(facts, replace(plan, mesh=Mesh(dp_shard=4, pp=2), pp_schedule=PipelineSchedule.GPIPE))
    assert len(shortcuts_of(job_of(facts))) == 2


def test_few_kinds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortcuts, "_MOST", 2)
    facts, draw = _facts("gpt2", "torch", "dgx-h100:8"), random.Random(0)  # noqa: S311 - as always
    plan = replace(_drawn(draw), mesh=Mesh(dp_shard=8), pp_schedule=None)
    for policy in Recompute:
        plan_memory(facts, replace(plan, recompute=policy))
        assert len(shortcuts_of(job_of(facts))) <= 2
