"""Peaks against dry runs of real torch: Llama on a fake process group, HF modules, bf16 compute.

The dry runs tracked every storage of one rank's forward and backward under torch 2.13 (MemTracker on fake
tensors; no optimizer), sequence length 4,096, micro-batch 1, fp32 parameters under FSDP2. Their script let
go of the logits before backward, which most scripts do not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import flying

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.memory import memory_columns, memory_estimate
from parastrat.plan import Backend, Mesh, Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.ranks.matrices import muon_matrices
from parastrat.ranks.states import element_bytes, least_bytes
from parastrat.sources import load_source
from parastrat.stack import Crossing
from parastrat.tables import facts_columns, plan_columns
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision, Workload


def facts(
    model: str = "llama-3.1-8b",
    *,
    on: str = "dgx-h100:8",
    precision: Precision = Precision.BF16_MIXED,
    optimizer: Optimizer = Optimizer.ADAMW,
    stack: str = "torch",
) -> Facts:
    source, software = load_source(model), load_stack(stack)
    assert source is not None
    return Facts(
        model=source.at(4096, precision, software.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=64, sequence_length=4096, optimizer=optimizer, precision=precision
        ),
        stack=software,
    )


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "mesh": Mesh(dp_shard=64),
        "shard": Shard.PARAMETERS,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "precision": Precision.BF16_MIXED,
        "backend": Backend.NCCL,
    }
    return Plan(**(fields | changes))


def memory(job: Facts, chosen: Plan) -> MemoryEstimate:
    return assess(job, chosen).estimate.memory


#: logits of Llama 3 in bf16
LOGITS_GIB = 4096 * 128_256 * 2 / GIB


def forward_backward_gib(estimate: MemoryEstimate) -> float:
    return (estimate.total - estimate.optimizer - estimate.overhead) / GIB


@pytest.mark.parametrize(
    ("changes", "measured_gib"),
    [
        ({}, 33.35),
        ({"reshard_after_forward": False}, 45.94),
        ({"recompute": Recompute.FULL}, 9.83),
        ({"mesh": Mesh(dp_replicate=8, dp_shard=8)}, 36.62),
    ],
    ids=["fsdp2", "kept gathered", "full recompute", "hsdp"],
)
def test_peaks_are_those_of_dry_runs(changes: dict[str, Any], measured_gib: float) -> None:
    peak = forward_backward_gib(memory(facts(), plan(**changes)))
    assert peak - LOGITS_GIB == pytest.approx(measured_gib, rel=0.002)


def test_a_pipeline_stage_is_near_its_dry_run() -> None:
    # 70B, pp 4 x dp_shard 16 x tp 8, 8 micro-batches, rank 0, without optimizer states
    chosen = plan(
        mesh=Mesh(pp=4, dp_shard=16, tp=8),
        gradient_accumulation_steps=8,
        sequence_parallel=False,
        # the last stage's logits are not the first's matter
        loss_parallel=True,
        recompute=Recompute.FULL,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B,
    )
    peak = forward_backward_gib(memory(facts("llama-3.1-70b", on="dgx-h100:64"), chosen))
    assert peak == pytest.approx(20.16, rel=0.06)


def test_pipelines_that_let_go_of_what_has_crossed_make_no_buffers() -> None:
    job = facts("llama-3.1-70b", on="dgx-h100:64")
    without = replace(job, stack=replace(job.stack, crossing=Crossing.NOTHING))
    chosen = plan(
        mesh=Mesh(pp=4, dp_replicate=16, tp=8),
        shard=Shard.NONE,
        gradient_accumulation_steps=32,
        recompute=Recompute.FULL,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B,
    )
    # the first rank receives a gradient of every micro-batch, in fp32 as autocast keeps the residual stream
    crossing = 4 * 4096 * 8192
    assert memory(job, chosen).total - memory(without, chosen).total >= 31 * crossing
    # without buffers, what the first of four ranks sent of its four micro-batches in flight
    sending = replace(job, stack=replace(job.stack, crossing=Crossing.SENT))
    least = memory(without, chosen).total
    sent = memory(sending, chosen).total - least
    assert sent == pytest.approx(4 * crossing * (1 + job.stack.fragmentation), rel=0.01)


def test_a_pipeline_that_reshards_gathers_unit_by_unit() -> None:
    job = facts("llama-3.1-70b", on="dgx-h100:64")
    pipelined: dict[str, Any] = {
        "mesh": Mesh(pp=4, dp_shard=16, tp=8),
        "gradient_accumulation_steps": 8,
        "sequence_parallel": True,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
    }
    kept, freed = (
        memory(job, plan(**pipelined, reshard_after_forward=reshard)) for reshard in (False, True)
    )
    # at the end of a micro-batch's backward all is gathered, and its activations are gone
    assert freed.total < kept.total
    assert (freed.parameters, freed.optimizer) == (kept.parameters, kept.optimizer)
    alone = {**pipelined, "mesh": Mesh(pp=4, dp_replicate=16, tp=8), "shard": Shard.NONE}
    whole, same = (memory(job, plan(**alone, reshard_after_forward=reshard)) for reshard in (False, True))
    assert whole == same


def test_states_are_sixteen_bytes_a_parameter_and_are_divided_by_what_is_sharded() -> None:
    job = facts()
    parameters = job.model.parameters
    whole = memory(job, plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE))
    assert (whole.parameters, whole.gradients, whole.optimizer) == (
        4 * parameters,
        4 * parameters,
        8 * parameters,
    )
    for shard, parts in (
        (Shard.OPTIMIZER, {"optimizer": 8}),
        (Shard.GRADIENTS, {"optimizer": 8, "gradients": 4}),
    ):
        sharded = memory(job, plan(shard=shard))
        for part, size in {"parameters": 4, "gradients": 4, "optimizer": 8}.items():
            over = 64 if part in parts else 1
            assert getattr(sharded, part) == pytest.approx(size * parameters / over, abs=1)


def test_megatron_keeps_short_weights_and_fp32_masters() -> None:
    job = facts(stack="megatron-core")
    element = element_bytes(job)
    assert (element.parameter, element.gradient, element.optimizer, element.cast) == (2, 4, 12, 0)


@pytest.mark.parametrize(
    ("optimizer", "size"),
    [
        (Optimizer.ADAMW, 8),
        (Optimizer.SGD, 0),
        (Optimizer.SGD_MOMENTUM, 4),
        (Optimizer.ADAMW_8BIT, 2 * (1 + 4 / 256)),
        (Optimizer.ADAFACTOR, 8 / 4096),
    ],
)
def test_optimizer_states(optimizer: Optimizer, size: float) -> None:
    job = facts(optimizer=optimizer)
    assert memory(job, plan()).optimizer == pytest.approx(size * job.model.parameters / 64, abs=1)


def test_muon_has_one_state_of_matrices_and_two_of_the_rest() -> None:
    job = facts(optimizer=Optimizer.MUON)
    matrices = muon_matrices(job)
    assert matrices is not None
    (layer,) = (kind for kind in matrices.of_kinds if kind)
    updated = 32 * sum(each.elements * each.count for each in layer)
    # 32 layers of 8 billion, without norms, the table and the head
    assert updated == job.model.parameters - 2 * 128256 * 4096 - (2 * 32 + 1) * 4096
    states = 8 * job.model.parameters - 4 * updated
    assert memory(job, plan()).optimizer == pytest.approx(states / 64, abs=1)


@pytest.mark.parametrize(
    ("precision", "bytes_each"),
    [(Precision.FP32, (4, 4, 8, 4)), (Precision.BF16, (2, 2, 4, 2)), (Precision.BF16_MIXED, (4, 4, 8, 2))],
)
def test_bytes_of_a_precision(precision: Precision, bytes_each: tuple[int, ...]) -> None:
    element = element_bytes(facts(precision=precision))
    assert (element.parameter, element.gradient, element.optimizer, element.compute) == bytes_each


def test_ddp_under_autocast_keeps_a_short_copy_of_the_weights() -> None:
    job = facts()
    same = replace(job.model, blocks=tuple(replace(block, autocast=None) for block in job.model.blocks))
    mixed = memory(replace(job, model=same), plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE)).activations
    short = facts(precision=Precision.BF16)
    plain = memory(
        short, plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE, precision=Precision.BF16)
    ).activations
    # all but the table of tokens, which is no product's
    (table,) = (block for block in job.model.blocks if block.name == "embedding")
    assert mixed - plain == pytest.approx(2 * (job.model.parameters - table.parameter_count), rel=0.001)


def test_autocast_keeps_the_residual_stream_in_fp32() -> None:
    (layer,) = (block for block in facts().model.blocks if block.name == "layer")
    width = 4096 * 4096
    assert layer.autocast is not None
    assert layer.autocast.boundary_bytes == layer.autocast.activations.full.total == 4 * width
    assert layer.boundary_bytes == layer.activations.full.total == 2 * width
    # q, k and v, gate and up read copies of their own; the norms' inputs are the stream itself, and what
    # they multiply with their weights is in fp32
    more = layer.autocast.activations.none.total - layer.activations.none.total
    assert more == (4 + 4 + 3 * 2 - 8) * width + (4 + 4 + 2 * 2 - 8) * width
    assert facts(precision=Precision.BF16).model.blocks[1].autocast is None


def test_offload_leaves_the_device() -> None:
    job = facts()
    kept, optimizer, everything = (memory(job, plan(offload=choice)) for choice in Offload)
    assert kept.optimizer > 0
    assert (optimizer.optimizer, optimizer.parameters) == (0, kept.parameters)
    assert (everything.parameters, everything.gradients, everything.optimizer) == (0, 0, 0)


@pytest.mark.parametrize(
    ("schedule", "rank", "virtual_stages", "held"),
    [
        (PipelineSchedule.GPIPE, 0, 1, 16),
        (PipelineSchedule.ONE_F_ONE_B, 0, 1, 4),
        (PipelineSchedule.ONE_F_ONE_B, 3, 1, 1),
        # (4 - 1) x 2 + (2 - 1) x 4 + 1 = 11 chunks of half a stage
        (PipelineSchedule.INTERLEAVED, 0, 2, 5.5),
        (PipelineSchedule.ZBV, 2, 2, 4),
    ],
)
def test_micro_batches_in_flight(
    schedule: PipelineSchedule, rank: int, virtual_stages: int, held: float
) -> None:
    chosen = plan(
        mesh=Mesh(pp=4), gradient_accumulation_steps=16, pp_schedule=schedule, virtual_stages=virtual_stages
    )
    columns = Columns({"divides_experts": True, **plan_columns(chosen)})
    assert flying(columns, rank) == held


def test_many_plans_at_once_are_the_plans_one_by_one() -> None:
    job = facts()
    plans = [
        plan(),
        plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE),
        plan(mesh=Mesh(dp_shard=8, tp=8), sequence_parallel=True, recompute=Recompute.SELECTIVE),
        plan(
            mesh=Mesh(pp=4, dp_shard=16),
            gradient_accumulation_steps=8,
            pp_schedule=PipelineSchedule.ONE_F_ONE_B,
        ),
    ]
    rows = [plan_columns(each) for each in plans]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    together = memory_columns(job, Columns({**facts_columns(job), **table}))
    assert [memory_estimate(together, row) for row in range(len(plans))] == [
        memory(job, each) for each in plans
    ]


@settings(max_examples=40)
@given(
    st.sampled_from([(1, 64, 1), (2, 32, 1), (1, 8, 8), (4, 4, 4)]),
    st.integers(0, 4),
    st.sampled_from(list(Recompute)),
    st.booleans(),
)
def test_a_larger_micro_batch_never_needs_less(
    shape: tuple[int, int, int], power: int, recompute: Recompute, reshard: bool
) -> None:
    pp, dp_shard, tp = shape
    chosen = plan(
        mesh=Mesh(pp=pp, dp_shard=dp_shard, tp=tp),
        micro_batch_size=2**power,
        gradient_accumulation_steps=8,
        recompute=recompute,
        reshard_after_forward=reshard,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B if pp > 1 else None,
    )
    larger = replace(chosen, micro_batch_size=2 ** (power + 1))
    assert memory(facts(), larger).total >= memory(facts(), chosen).total


def test_parts_add_up_and_the_margin_is_at_most_eight_percent_of_the_card() -> None:
    estimate = memory(facts(), plan())
    assert sum(estimate.parts.values()) == estimate.total
    # a third of the estimate would be more than that
    assert estimate.margin == int(0.08 * estimate.capacity)
    known = replace(facts(), stack=replace(load_stack("torch"), memory_margin=0.05))
    estimate = memory(known, plan())
    assert estimate.margin == int(0.05 * estimate.total)
    huge = memory(facts(), plan(mesh=Mesh(dp_replicate=64), shard=Shard.NONE, micro_batch_size=64))
    assert huge.margin == int(0.08 * huge.capacity)


@settings(max_examples=60)
@given(
    st.sampled_from(
        [(1, 64, 1, 1), (2, 32, 1, 1), (1, 8, 1, 8), (4, 4, 1, 4), (1, 1, 64, 1), (64, 1, 1, 1)]
    ),
    st.sampled_from(list(Offload)),
    st.sampled_from(list(Optimizer)),
    st.sampled_from(["llama-3.1-8b", "gpt2", "mixtral-8x7b"]),
)
def test_no_plan_needs_less_than_an_even_share_of_the_states(
    shape: tuple[int, int, int, int], offload: Offload, optimizer: Optimizer, model: str
) -> None:
    pp, dp_shard, dp_replicate, tp = shape
    job = facts(model, optimizer=optimizer)
    chosen = plan(
        mesh=Mesh(pp=pp, dp_shard=dp_shard, dp_replicate=dp_replicate, tp=tp),
        shard=Shard.PARAMETERS if dp_shard > 1 else Shard.NONE,
        recompute=Recompute.FULL,
        offload=offload,
        pp_schedule=PipelineSchedule.ONE_F_ONE_B if pp > 1 else None,
    )
    assert 0 < least_bytes(job, offload) <= memory(job, chosen).total


def test_adamw_keeps_sixteen_bytes_a_parameter_and_four_while_it_steps() -> None:
    job = facts()
    states = 20 * job.model.parameters / 64
    assert least_bytes(job, Offload.NONE) == pytest.approx(states + job.stack.context_bytes)
    assert least_bytes(job, Offload.PARAMETERS) == job.stack.context_bytes


def test_logits_of_a_loss_that_is_not_parallel_are_whole_on_every_tensor_parallel_rank() -> None:
    divided = {"mesh": Mesh(dp_replicate=8, tp=8), "shard": Shard.NONE, "sequence_parallel": True}
    parallel, whole = (memory(facts(), plan(**divided, loss_parallel=each)) for each in (True, False))
    # one token of the vocabulary in fp32 as the log-softmax; in its backward twice more, beside the logits,
    # and in parallel once
    logits = 4096 * 128_256
    kept = 4 * logits * 7 / 8
    working = (2 * 4 + 2) * logits * 7 / 8 + 4 * logits / 8
    assert whole.activations - parallel.activations == pytest.approx(kept, abs=2)
    assert whole.transient - parallel.transient == pytest.approx(working, abs=2)
