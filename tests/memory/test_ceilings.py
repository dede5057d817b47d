"""What ranks of a pipeline hold at most, beside what they hold."""

from __future__ import annotations

import random

import pytest

from memory.drawing import choices
from parastrat.case import Facts
from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alone import fullest, fullest_of, plan_alone, ranks_of
from parastrat.memory.ceilings import ceilings
from parastrat.memory.held import ranks_read
from parastrat.memory.plans import job_of
from parastrat.plan import Mesh, PipelineSchedule, Plan
from parastrat.profiles import load_hardware, load_stack
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

#: of which each rank's virtual stages hold alike
_SCHEDULES = (
    PipelineSchedule.ONE_F_ONE_B,
    PipelineSchedule.GPIPE,
    PipelineSchedule.LOOPED_BFS,
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE,
)


def _drawn(draw: random.Random) -> Plan:
    schedule = draw.choice(_SCHEDULES)
    return Plan(
        mesh=Mesh(
            pp=draw.choice((2, 3, 4, 8)),
            dp_replicate=draw.choice((1, 2)),
            dp_shard=draw.choice((1, 8, 64)),
            cp=draw.choice((1, 2)),
            tp=draw.choice((1, 2, 8)),
            ep=draw.choice((1, 1, 8)),
        ),
        micro_batch_size=draw.choice((1, 4)),
        gradient_accumulation_steps=draw.choice((1, 2, 8, 32)),
        **choices(draw),
        pp_schedule=schedule,
        virtual_stages=draw.choice((1, 2)) if schedule is PipelineSchedule.LOOPED_BFS else 1,
    )


@pytest.mark.parametrize("stack", ["torch", "torch-compile", "megatron-core", "megatron-deepspeed"])
@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v2-lite", "gpt2", "gemma-2-9b", "resnet-50"])
@pytest.mark.parametrize("on", ["dgx-h100:8", "cpu"])
def test_no_rank_holds_more_than_its_ceiling_and_the_fullest_is_found(
    model: str, stack: str, on: str
) -> None:
    source, own = load_source(model), load_stack(stack)
    assert source is not None
    tokens = None if model == "resnet-50" else 4096
    facts = Facts(
        model=source.at(tokens, Precision.BF16_MIXED, own.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=64,
            sequence_length=tokens,
            optimizer=Optimizer.ADAMW,
            precision=Precision.BF16_MIXED,
        ),
        stack=own,
    )
    draw = random.Random(0)  # noqa: S311 - can be repeated
    for _ in range(60):
        plans = plan_alone(job_of(facts), _drawn(draw))
        (ranks, turning), kinds, read = ranks_of(plans), kinds_bytes(plans), ranks_read(plans, None)
        if turning is not None:
            continue  # what waits is in no ceiling
        each = [fullest_of(plans, kinds, rank, read, None) for rank in ranks]
        assert all(
            found.total <= highest
            for found, highest in zip(each, ceilings(plans, kinds, ranks, read), strict=True)
        )
        first = max(each, key=lambda found: found.total)
        assert fullest(plans).moments.rank is first.moments.rank
