from __future__ import annotations

from dataclasses import replace

import pytest
from builders import case, codes

from parastrat.plan import Compile, ContextMethod, Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.rules.runtime_support import axes_are_planned_only, refusals_of
from parastrat.workload import Precision


def test_axes_are_planned_only() -> None:
    assert "PS290" in codes(dp_shard=2, ep=2)
    assert "PS290" not in codes(dp_shard=2, ep=2, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(dp_shard=2, tp=2, ep=4, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(dp_shard=2, tp=4, ep=2, shard=Shard.PARAMETERS)
    assert "PS290" in codes(dp_shard=2, tp=4, ep=6, shard=Shard.PARAMETERS)
    assert "PS290" in codes(tp=4, ep=2, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(tp=4, ep=4, shard=Shard.NONE)
    assert "PS290" in codes(dp_replicate=2, tp=4, ep=4, shard=Shard.NONE)
    assert "PS290" not in codes(dp_shard=2, pp=2, ep=2, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(cp=2, pp=2, shard=Shard.PARAMETERS)
    assert "PS290" in codes(cp=2, pp=2, shard=Shard.NONE)
    assert "PS290" in codes(cp=2, shard=Shard.NONE)
    assert "PS290" in codes(cp=2, cp_method=ContextMethod.RING)
    assert "PS290" not in codes(cp=2, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(cp=2, tp=2, shard=Shard.PARAMETERS)
    assert "PS290" not in codes(dp_shard=2, dp_replicate=2, tp=2)
    assert "PS290" not in codes(dp_shard=2, pp=2)
    # torchtitan is named for what it has
    for ref, where in (("llama-3.1-8b", "torchtitan or Megatron-LM"), ("t5-3b", "a framework that has")):
        fix = axes_are_planned_only.hit(case(cp=2, pp=2, ref=ref)).fix
        assert fix.startswith(f"run this plan with {where}")


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_selective_recompute_of_split_backwards(schedule: PipelineSchedule) -> None:
    stages = {"pp": 2, "pp_schedule": schedule}
    split = schedule in {"InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}
    assert ("PS299" in codes(recompute=Recompute.SELECTIVE, **stages)) == split
    assert "PS299" not in codes(recompute=Recompute.FULL, **stages)
    assert "PS299" not in codes(recompute=Recompute.SELECTIVE, pp_schedule=schedule)


@pytest.mark.parametrize("axis", ["cp", "ep"])
def test_selective_recompute_of_broken_graphs(axis: str) -> None:
    compiled = {"compile": Compile.BLOCK, "recompute": Recompute.SELECTIVE}
    assert "PS296" in codes(**compiled, **{axis: 2})
    assert "PS296" not in codes(recompute=Recompute.SELECTIVE, **{axis: 2})
    assert "PS296" not in codes(compile=Compile.BLOCK, recompute=Recompute.FULL, **{axis: 2})
    assert "PS296" not in codes(**compiled, dp_shard=2, tp=2, pp=2)


def test_resharding_stages() -> None:
    sharded = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    assert "PS298" in codes(pp=2, reshard_after_forward=True, **sharded)
    # context ranks share the shards
    assert "PS298" in codes(pp=2, cp=2, reshard_after_forward=True, shard=Shard.PARAMETERS)
    assert "PS298" not in codes(pp=2, reshard_after_forward=False, **sharded)
    assert "PS298" not in codes(reshard_after_forward=True, **sharded)
    assert "PS298" not in codes(pp=2, reshard_after_forward=True, dp_replicate=2, shard=Shard.NONE)


def test_replicas_over_the_shard_axis() -> None:
    assert "PS297" in codes(shard=Shard.NONE, dp_shard=2)
    assert "PS297" not in codes(shard=Shard.NONE, dp_replicate=2)
    assert "PS297" not in codes(shard=Shard.PARAMETERS, dp_shard=2)


def test_expert_parallelism_is_planned_only() -> None:
    assert "PS290" in codes(ep=2, dp_shard=2)


def test_sharded_state_without_parameters() -> None:
    assert "PS291" in codes(shard=Shard.OPTIMIZER, dp_shard=2)
    assert "PS291" in codes(shard=Shard.GRADIENTS, dp_shard=2)
    assert "PS291" not in codes(shard=Shard.PARAMETERS, dp_shard=2)


def test_sharded_state_names_the_fsdp2_plan_with_the_same_memory() -> None:
    (finding,) = refusals_of(case(shard=Shard.OPTIMIZER, dp_shard=8).plan)
    assert "ZeRO-1" in finding.message
    assert "shard = parameters, reshard_after_forward = false, dp_shard 8" in finding.fix


def test_offload_is_planned_only() -> None:
    assert "PS292" in codes(offload=Offload.PARAMETERS)
    assert "PS292" not in codes()


def test_fp8_is_planned_only() -> None:
    assert "PS293" in codes(precision=Precision.FP8)
    assert "PS293" not in codes(precision=Precision.BF16)


def test_attention_recompute_under_compile() -> None:
    assert "PS294" in codes(recompute=Recompute.ATTENTION, compile=Compile.BLOCK)
    assert "PS294" not in codes(recompute=Recompute.ATTENTION)
    assert "PS294" not in codes(recompute=Recompute.FULL, compile=Compile.BLOCK)


def test_refuses_nothing_that_it_applies() -> None:
    plan: Plan = case(dp_shard=4, dp_replicate=2, shard=Shard.PARAMETERS).plan
    assert refusals_of(plan) == ()
    assert refusals_of(replace(plan, recompute=Recompute.FULL, compile=Compile.BLOCK)) == ()


def test_refuses_with_every_reason() -> None:
    plan = case(cp=2, offload=Offload.OPTIMIZER, precision=Precision.FP8).plan
    assert [finding.code for finding in refusals_of(plan)] == ["PS290", "PS292", "PS293"]
