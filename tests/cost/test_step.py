"""A step's parts: how often each happens, what hides what, and on which rank."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jobs import BETWEEN, GB, INSIDE, TERA, block, job, matmul, plan

from parastrat.assess import assess, assess_all, plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.cost import (
    block_seconds,
    heaviest_of,
    least_weights_s,
    step_s,
    time_columns,
    weights_floor,
)
from parastrat.errors import ProfileError
from parastrat.estimate import TimeEstimate
from parastrat.hardware import FigureKind, Link, Provenance
from parastrat.model import Block, Parameters, Split
from parastrat.plan import Offload, PipelineSchedule, Plan, Recompute, Shard
from parastrat.stack import Kernels
from parastrat.stage_load import StageLoad
from parastrat.tables import facts_columns
from parastrat.units import MIB
from parastrat.workload import Optimizer, Precision

ONE_F_ONE_B = {"pp_schedule": PipelineSchedule.ONE_F_ONE_B}


def step(facts: Facts, **fields: Any) -> TimeEstimate:
    return assess(facts, plan(**fields)).estimate.time


def layer(**changes: Any) -> Block:
    """Return a layer of one second forward and two backward, twice in the model."""
    return block(matmul(TERA), **({"repeat": 2} | changes))


def dense(billions: float, split: Split = Split.TENSOR) -> tuple[Parameters, ...]:
    return (Parameters(trainable=int(billions * GB), split=split),)


def full_model() -> Facts:
    """Return a small decoder for which every part of the step takes time."""
    ends = block(matmul(TERA / 4), parameters=dense(0.1), boundary_bytes=GB, unit=False)
    middle = block(
        matmul(TERA, m=100, n=100, k=100, split=Split.TENSOR, split_side="n"),
        repeat=4,
        parameters=(*dense(1), *dense(2, Split.EXPERT)),
        boundary_bytes=GB,
        tensor_parallel_collectives=2,
        tensor_parallel_bytes=GB,
        expert_parallel_bytes=GB,
        context_parallel_bytes=GB,
    )
    return job(
        ends,
        middle,
        replace(ends, name="head"),
        num_nodes=8,
        stack={
            "fsdp_overlap": 0.8,
            "dp_overlap": 0.6,
            "zero_overlap": 0.3,
            "tp_overlap": 0.5,
            "async_tp_overlap": 0.75,
            "pp_overlap": 0.1,
            "step_constant_s": 0.01,
            "launches_per_operator": 1.0,
        },
        device={"launch_s": 1e-3},
    )


EVERYTHING: dict[str, Any] = {
    "pp": 2,
    "dp_replicate": 2,
    "dp_shard": 2,
    "cp": 2,
    "tp": 2,
    "ep": 4,
    "shard": Shard.PARAMETERS,
    "gradient_accumulation_steps": 4,
    **ONE_F_ONE_B,
}


def test_compute_is_every_layers_for_every_micro_batch_and_the_constant_once() -> None:
    facts = job(layer(), stack={"step_constant_s": 0.25})
    found = step(facts, micro_batch_size=5, gradient_accumulation_steps=3)
    assert found.compute == pytest.approx(2 * (1 + 2) * 5 * 3 + 0.25)
    again = step(facts, recompute=Recompute.FULL)
    assert again.compute == pytest.approx(2 * (1 + 2 + 1) + 0.25)


def test_parts_add_up_to_the_step() -> None:
    found = step(full_model(), **EVERYTHING)
    assert all(seconds > 0 for seconds in found.parts.values()), found.parts
    assert found.step == pytest.approx(math.fsum(found.parts.values()))
    low, high = found.step_low / found.step, found.step_high / found.step
    assert (low, high) == (pytest.approx(math.exp(-0.2)), pytest.approx(math.exp(0.2)))


def test_an_interval_may_be_another_with_experts() -> None:
    spreads = {"time_spread": 0.1, "time_spread_with_experts": 0.3}
    for experts, spread in ((None, 0.1), (8, 0.3)):
        found = step(job(layer(), stack=spreads, model={"experts": experts}))
        assert found.step_high / found.step == pytest.approx(math.exp(spread))


def test_alone_a_rank_only_computes_and_updates() -> None:
    busy = {part for part, seconds in step(full_model()).parts.items() if seconds}
    assert busy == {"compute", "optimizer"}


def test_tensor_parallelism_reduces_in_forward_and_in_backward() -> None:
    facts = job(layer(tensor_parallel_collectives=3, tensor_parallel_bytes=GB))
    found = step(facts, tp=4, micro_batch_size=5, gradient_accumulation_steps=3)
    # all-reduce: 2 x 3/4 of the bytes at 100 GB/s; 3 collectives, forward and backward, of 2 layers
    assert found.tp_exposed == pytest.approx(2 * 3 / 4 * GB * 5 / (100 * GB) * 3 * 2 * 2 * 3)


def test_tensor_parallel_ranks_and_experts_stand_side_by_side() -> None:
    facts = job(
        layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB, expert_parallel_bytes=GB),
        num_nodes=2,
    )
    # all 8 of a node in the group: inside, 15/16 twice at 100 GB/s; between, 8/16 twice over 8 cards, whose
    # pipeline fills first
    filling = 4 * MIB / (10 * GB) * GB / (GB + 8 * MIB)
    assert step(facts, tp=16).tp_exposed == pytest.approx((2 * 15 / 16 * GB / (100 * GB) + filling) * 2 * 2)
    # every second message stays inside; what came is read and written to sort it by experts
    sent = 8 / 16 * GB / (10 * GB) + 2 * GB / TERA
    assert step(facts, dp_shard=16, ep=16).ep_exposed == pytest.approx(4 * sent * 2)


def test_copies_of_a_token_may_enter_a_domain_as_one() -> None:
    routed = layer(expert_parallel_bytes=GB, experts_per_token=2)
    apart, once = (
        job(routed, num_nodes=4, stack={"dispatch_once_per_domain": chosen}) for chosen in (False, True)
    )
    sorting = 2 * GB / TERA
    expected = 4 * (24 / 32 * GB / (10 * GB) + sorting) * 2
    assert step(apart, dp_shard=32, ep=32).ep_exposed == pytest.approx(expected)
    # of two copies at random over four nodes 3 x (1 - 9/16) other nodes have one, each half the bytes
    expected = 4 * (3 * 7 / 16 * GB / 2 / (10 * GB) + sorting) * 2
    assert step(once, dp_shard=32, ep=32).ep_exposed == pytest.approx(expected)


def test_a_stack_hides_a_share_of_tensor_parallelism_and_another_asynchronously() -> None:
    overlaps = {"tp_overlap": 0.5, "async_tp_overlap": 0.75}
    facts = job(layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB), stack=overlaps)
    # shown is half: all-reduce 2 x 3/4 of the bytes at 100 GB/s; forward and backward, of 2 layers
    plain = step(facts, tp=4)
    assert plain.tp_exposed == pytest.approx(0.5 * 2 * 3 / 4 * GB / (100 * GB) * 2 * 2)
    assert step(facts, tp=4, async_tp=True).tp_exposed == pytest.approx(plain.tp_exposed / 2)
    assert step(facts, tp=4, cp=2).tp_exposed == pytest.approx(plain.tp_exposed / 2)


def test_nothing_of_tensor_parallelism_is_hidden_between_nodes() -> None:
    overlaps = {"tp_overlap": 0.5, "async_tp_overlap": 0.75}
    split = layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB)
    facts, waiting = job(split, num_nodes=2, stack=overlaps), job(split, num_nodes=2)
    assert step(facts, tp=8).tp_exposed == pytest.approx(step(waiting, tp=8).tp_exposed / 2)
    expected = step(waiting, tp=16).tp_exposed
    assert step(facts, tp=16).tp_exposed == step(facts, tp=16, async_tp=True).tp_exposed == expected > 0


def test_under_fp8_layers_gather_casted_activations_and_scatter_others() -> None:
    ends = block(tensor_parallel_collectives=1, tensor_parallel_bytes=GB, unit=False)
    facts = job(ends, layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB))
    narrow = job(*facts.model.blocks, precision=Precision.FP8)
    # of two bytes one is gathered and two are scattered, in each of 2 layers; the end stays as it is
    one = 2 * 3 / 4 * GB / (100 * GB) * 2
    assert step(facts, tp=4).tp_exposed == pytest.approx(3 * one)
    assert step(narrow, tp=4).tp_exposed == pytest.approx((2 * 0.75 + 1) * one)
    # with a scale for each row all stays in bf16
    rows = replace(narrow, stack=replace(narrow.stack, scales_rows=True))
    assert step(rows, tp=4).tp_exposed == pytest.approx(3 * one)


def test_four_bits_are_gathered_with_their_scales_and_hide_behind_nothing() -> None:
    own = layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB)
    eight = job(own, precision=Precision.FP8, stack={"tp_overlap": 0.5, "async_tp_overlap": 0.5})
    four = replace(eight, stack=replace(eight.stack, casts_four_bits=True))
    # of two bytes 4.5 bits are gathered, where eight are, and two bytes are scattered
    shown, half = step(four, tp=4), step(eight, tp=4)
    assert shown.tp_exposed == pytest.approx(2 * half.tp_exposed * (4.5 / 16 + 1) / (8 / 16 + 1))
    assert step(four, tp=4, async_tp=True).tp_exposed == shown.tp_exposed


def test_a_switch_does_not_shorten_what_sequence_parallelism_gathers_and_scatters() -> None:
    facts = job(layer(tensor_parallel_collectives=1, tensor_parallel_bytes=GB))
    scale_up = facts.hardware.scale_up
    assert scale_up is not None
    switched = replace(
        facts, hardware=replace(facts.hardware, scale_up=replace(scale_up, all_reduce_gain=2))
    )
    whole = step(facts, tp=4).tp_exposed
    assert step(switched, tp=4).tp_exposed == pytest.approx(whole / 2)
    for each in (facts, switched):
        assert step(each, tp=4, sequence_parallel=True).tp_exposed == pytest.approx(whole)


def test_context_parallelism_gathers_twice_and_scatters_once() -> None:
    facts = job(layer(context_parallel_bytes=GB))
    found = step(facts, cp=2, tp=2, micro_batch_size=5, gradient_accumulation_steps=3)
    assert found.cp_exposed == pytest.approx(3 * 1 / 2 * GB * 5 / 2 / (100 * GB) * 2 * 3)


def test_gradients_of_keys_and_values_may_go_around_in_fp32() -> None:
    facts = job(layer(context_parallel_bytes=GB), stack={"passes_gradients": True})
    # gathered twice, and 4 times a quarter of twice the bytes
    gathered, passed = 2 * 3 / 4 * GB, 4 * 2 * GB / 4
    assert step(facts, cp=4).cp_exposed == pytest.approx((gathered + passed) / (100 * GB) * 2)
    assert step(facts, cp=1).cp_exposed == 0
    # over two nodes all wait for the hop between them
    wide = replace(facts, hardware=replace(facts.hardware, num_nodes=2))
    three = replace(wide, stack=replace(wide.stack, passes_gradients=False))
    gathered, passed = 2 / 3 * step(three, cp=16).cp_exposed, 16 * 2 * GB / 16 / (10 * GB)
    assert step(wide, cp=16).cp_exposed == pytest.approx(gathered + passed * 2)


@pytest.mark.parametrize(
    ("policy", "tensor", "context", "expert"),
    [
        (Recompute.NONE, 1, 1, 1),
        (Recompute.ATTENTION, 1, 1, 1),
        # gathers of forward, half of its collectives
        (Recompute.SELECTIVE, 5 / 4, 1, 1),
        # of two pairs all but what the block gives
        (Recompute.FULL, 11 / 8, 4 / 3, 3 / 2),
    ],
)
def test_what_is_computed_again_is_sent_again(
    policy: Recompute, tensor: float, context: float, expert: float
) -> None:
    held = layer(
        tensor_parallel_collectives=2,
        tensor_parallel_bytes=GB,
        context_parallel_bytes=GB,
        expert_parallel_bytes=GB,
    )
    for sends_again in (True, False):
        facts = job(held, stack={"sends_again": sends_again})
        plan = {"tp": 2, "cp": 2, "dp_shard": 2, "ep": 2}
        once, found = step(facts, **plan), step(facts, recompute=policy, **plan)
        shares = (tensor, context, expert) if sends_again else (1, 1, 1)
        assert found.tp_exposed == pytest.approx(shares[0] * once.tp_exposed)
        assert found.cp_exposed == pytest.approx(shares[1] * once.cp_exposed)
        assert found.ep_exposed == pytest.approx(shares[2] * once.ep_exposed)
        assert min(once.tp_exposed, once.cp_exposed, once.ep_exposed) > 0


def test_ranks_of_a_sequence_stand_tp_apart() -> None:
    facts = job(layer(context_parallel_bytes=GB), num_nodes=2)
    assert step(facts, cp=2, tp=8).cp_exposed == pytest.approx(3 * 1 / 2 * GB / 8 / (10 * GB) * 2)


def test_experts_are_reached_four_times() -> None:
    facts = job(layer(expert_parallel_bytes=GB))
    found = step(facts, dp_shard=4, ep=4, micro_batch_size=5, gradient_accumulation_steps=3)
    # 3/4 of the bytes leave the rank, all are sorted; dispatch and combine, forward and backward
    one = 3 / 4 * GB / (100 * GB) + 2 * GB / TERA
    assert found.ep_exposed == pytest.approx(4 * one * 5 * 2 * 3)
    # ranks of one sequence, and of one tensor-parallel group, send their share of its tokens
    for axis in ("cp", "tp"):
        shared = step(facts, dp_shard=2, ep=4, **{axis: 2})
        assert shared.ep_exposed == pytest.approx(4 * one / 2 * 2)


def test_a_byte_costs_a_hop_and_nothing_costs_none() -> None:
    slow = {"scale_up": replace(INSIDE, latency_s=1.0)}
    found = step(job(layer(), hardware=slow), dp_shard=2, cp=2, tp=2, ep=8)
    assert (found.tp_exposed, found.cp_exposed, found.ep_exposed) == (0, 0, 0)
    byte = layer(context_parallel_bytes=1, expert_parallel_bytes=1, repeat=1)
    hops = step(job(byte, hardware=slow), dp_shard=2, cp=2, ep=4)
    assert (hops.cp_exposed, hops.ep_exposed) == (pytest.approx(3), pytest.approx(4))


@pytest.mark.parametrize(("virtual_stages", "share"), [(1, 1), (3, 1 / 3)])
def test_the_bubble_is_a_micro_batch_for_each_rank_ahead(virtual_stages: int, share: float) -> None:
    # 4 ranks with 3 layers each, 3 seconds a layer: arXiv:2104.04473, section 2.2
    facts = job(layer(repeat=12), stack={"step_constant_s": 0.25})
    found = step(facts, pp=4, gradient_accumulation_steps=8, virtual_stages=virtual_stages, **ONE_F_ONE_B)
    assert found.compute == pytest.approx(8 * 9 + 0.25)
    assert found.pp_bubble == pytest.approx((4 - 1) * 9 * share)


@pytest.mark.parametrize(("virtual_stages", "blocks"), [(1, 3), (2, 1.5)])
def test_a_backward_in_two_parts_launches_more(virtual_stages: int, blocks: float) -> None:
    # twelve blocks on four ranks; each launches one kernel forward and two backward
    idle = block(matmul(1), repeat=12)
    torch = {"splits_backward": True, "split_launches": 2.0, "split_launches_per_block": 0.5}
    facts = job(idle, stack={"launches_per_operator": 1.0, **torch}, device={"launch_s": 1.0})
    plan_ = {"pp": 4, "gradient_accumulation_steps": 8, "virtual_stages": virtual_stages}
    whole = step(facts, pp_schedule=PipelineSchedule.INTERLEAVED, **plan_)
    split = step(facts, pp_schedule=PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, **plan_)
    assert whole.compute == pytest.approx(8 * 3 * (1 + 2))
    assert split.compute == pytest.approx(8 * 3 * (1 + 2 * (2.0 + 0.5 * blocks)))
    # the host is not asked where each step is one graph
    captured = replace(facts, stack=replace(facts.stack, captured=True))
    again = step(captured, pp_schedule=PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, **plan_)
    assert again.compute == pytest.approx(0, abs=1e-9)


def test_the_bubble_waits_for_exposed_collectives_too() -> None:
    facts = job(
        layer(
            tensor_parallel_collectives=2,
            tensor_parallel_bytes=100 * GB,
            context_parallel_bytes=100 * GB,
            expert_parallel_bytes=100 * GB,
        ),
        num_nodes=4,
    )
    found = step(facts, pp=2, dp_shard=2, cp=2, tp=2, ep=2, gradient_accumulation_steps=4, **ONE_F_ONE_B)
    together = found.compute + found.tp_exposed + found.cp_exposed + found.ep_exposed
    assert min(found.tp_exposed, found.cp_exposed, found.ep_exposed) > 0
    assert found.pp_bubble == pytest.approx(together / 4)


@pytest.mark.parametrize("virtual_stages", [1, 2])
def test_work_is_blocks_and_bubble_of_ranks_that_are_alike(virtual_stages: int) -> None:
    facts = job(
        replace(
            layer(tensor_parallel_collectives=2, tensor_parallel_bytes=GB, context_parallel_bytes=3 * GB),
            repeat=8,
            boundary_bytes=GB,
            expert_parallel_bytes=5 * GB,
            parameters=dense(1),
        )
    )
    fields: dict[str, Any] = {
        "pp": 4,
        "dp_shard": 2,
        "cp": 2,
        "tp": 2,
        "ep": 2,
        "shard": Shard.PARAMETERS,
        "gradient_accumulation_steps": 8,
        "micro_batch_size": 4,
        "virtual_stages": virtual_stages,
    }
    parts = step(facts, **fields).parts
    columns = Columns(facts_columns(facts) | plans_table([plan(**fields)]))
    told = ("compute", "tp_exposed", "cp_exposed", "ep_exposed", "pp_bubble")
    assert all(part > 0 for part in parts.values())
    of_blocks = sum(parts[part] for part in told)
    work = np.array([of_blocks - facts.stack.step_constant_s])
    heaviest = heaviest_of(facts, columns, (columns, block_seconds(facts, columns)))
    weights = least_weights_s(heaviest, columns)
    (floor,) = weights_floor(facts, columns, work, np.array([8]), weights)
    # stages are equal; more hides behind all of the work than behind what is computed; no sends are told
    assert of_blocks + parts["optimizer"] < floor
    assert floor <= sum(parts.values()) - parts["pp_exposed"]


def test_seconds_of_blocks_serve_for_whatever_is_computed_again_and_for_chosen_rows() -> None:
    facts = full_model()
    plans = [
        plan(**EVERYTHING | {"micro_batch_size": size, "recompute": policy})
        for policy in Recompute
        for size in (1, 2, 1)
    ]
    columns = Columns(facts_columns(facts) | plans_table(plans))
    plain = columns.joined({"recompute": np.zeros(len(plans), dtype=int)})
    chosen = np.array([9, 7, 1])
    found = time_columns(facts, columns.at(chosen), block_seconds(facts, plain).rows(chosen))
    assert found["step"].tolist() == time_columns(facts, columns)["step"][chosen].tolist()
    assert len(set(found["step"].tolist())) == len(chosen)


def test_plans_whose_kernels_are_given_as_much_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = full_model()
    sizes = [(1, 1), (2, 2), (4, 2), (2, 1), (4, 1)]
    plans = [plan(tp=tp, cp=cp, micro_batch_size=size, dp_shard=2) for tp in (1, 2) for size, cp in sizes]
    columns = Columns(facts_columns(facts) | plans_table(plans))
    each = block_seconds(facts, columns)
    monkeypatch.setattr("parastrat.cost.blocks._FEW", 0)
    found = block_seconds(facts, columns)
    assert (found.compute == each.compute).all()
    assert (found.others == each.others).all()


def test_more_plans_than_are_looked_at_once_take_what_each_takes() -> None:
    facts, many = full_model(), 30_001
    plans = [plan(pp=2, tp=2, ep=2, dp_shard=2, micro_batch_size=size, **ONE_F_ONE_B) for size in (1, 2, 4)]
    columns = Columns({**facts_columns(facts), **plans_table(plans)}).at(np.arange(many) % 3)
    found, each = step_s(facts, columns), [case.estimate.time.step for case in assess_all(facts, plans)]
    assert (found == np.array(each)[np.arange(many) % 3]).all()


def test_exchanges_hide_behind_another_micro_batch_where_runs_have_it_so() -> None:
    routed = layer(expert_parallel_bytes=GB)
    chosen = {"exchange_overlap": 0.75}
    shown, hidden = (
        step(job(routed, stack=chosen | {"exchanges_beside": beside}), dp_shard=2, ep=2).ep_exposed
        for beside in (False, True)
    )
    # what sorts tokens stays: read and written once, four times a layer, of two
    sorting = 2 * 4 * 2 * GB / TERA
    assert hidden - sorting == pytest.approx((shown - sorting) / 4)
    assert shown > 3 * sorting


def test_rows_that_an_exchange_puts_in_order_move_once_for_that() -> None:
    routed = layer(expert_parallel_bytes=GB)
    chosen = {"routed_traffic_factor": 3.0}
    apart, within = (
        step(job(routed, stack=chosen | {"permutes_in_exchange": permutes}), dp_shard=2, ep=2).ep_exposed
        for permutes in (False, True)
    )
    # read and written, four times a layer, of two
    assert apart - within == pytest.approx((3 - 1) * 2 * 4 * 2 * GB / TERA)


def sends(facts: Facts | None = None, **fields: Any) -> float:
    made = facts or job(layer(boundary_bytes=GB), block(boundary_bytes=GB / 2), num_nodes=2)
    return step(made, pp=2, **ONE_F_ONE_B, **fields).pp_exposed


def test_activations_go_on_and_gradients_come_back() -> None:
    # the largest boundary, in one node: 1 GB at 100 GB/s, there and back for each chunk
    expected = 2 * 5 * 3 * 2 * GB / (100 * GB)
    found = sends(micro_batch_size=5, gradient_accumulation_steps=3, virtual_stages=2)
    assert found == pytest.approx(expected)
    shown = job(layer(boundary_bytes=GB), stack={"pp_overlap": 0.75})
    assert sends(shown, virtual_stages=2) == pytest.approx(2 * 2 * GB / (100 * GB) / 4)


def test_ranks_with_one_stage_wait_for_what_they_send() -> None:
    shown = job(layer(boundary_bytes=GB), stack={"pp_overlap": 0.75})
    assert sends(shown) == pytest.approx(2 * GB / (100 * GB))


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"dp_replicate": 8}, 1 / 10),
        ({"dp_shard": 8}, 1 / 10),
        ({"tp": 8}, 1 / 10),
        ({"cp": 8}, 1 / 8 / 10),
        ({"tp": 2}, 1 / 100),
        ({"tp": 2, "sequence_parallel": True}, 1 / 2 / 100),
        ({"tp": 4, "cp": 2, "sequence_parallel": True}, 1 / 8 / 10),
    ],
)
def test_a_boundary_is_shared_and_crosses_nodes_where_stages_do(
    fields: dict[str, Any], seconds: float
) -> None:
    assert sends(**fields) == pytest.approx(2 * seconds)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        # an eighth through each network card, and gathered in the node: 7/8 at 100 GB/s
        ({"tp": 8}, 1 / 8 / 10 + 7 / 8 / 100),
        # nothing to gather where each rank wants its part alone, or where there is one rank
        ({"tp": 8, "sequence_parallel": True}, 1 / 8 / 10),
        ({"dp_shard": 8}, 1 / 10),
    ],
)
def test_ranks_that_hold_the_same_may_send_a_part_each(fields: dict[str, Any], seconds: float) -> None:
    parts = job(layer(boundary_bytes=GB), num_nodes=2, stack={"scatters_sends": True})
    assert sends(parts, **fields) == pytest.approx(2 * seconds)


def updated(facts: Facts, **fields: Any) -> float:
    return step(facts, **fields).optimizer


def test_weights_that_are_cast_once_are_cast_with_the_optimizers_step() -> None:
    own = layer(repeat=3, parameters=dense(1))

    def cast_s(**plan: Any) -> float:
        stacks = [
            {"casts_weights_once": True, "fp8_cast_bytes": cast, "elementwise_factor": 2.0}
            for cast in (4, 0)
        ]
        facts = [job(own, precision=Precision.FP8, stack=stack) for stack in stacks]
        with_cast, without = (updated(each, **plan) for each in facts)
        return with_cast - without

    assert cast_s() == pytest.approx(3 * GB * 4 * 2 / TERA)
    # ranks that shard them gather what is cast
    assert cast_s(dp_shard=2, shard=Shard.PARAMETERS) == pytest.approx(0)


def test_the_optimizer_reads_gradients_and_reads_and_writes_the_rest() -> None:
    # AdamW: 4 bytes of gradient, 4 of weight, 8 of states
    facts = job(layer(parameters=dense(1)), stack={"elementwise_factor": 1.5})
    assert updated(facts) == pytest.approx(2 * GB * (4 + 2 * (4 + 8)) * 1.5 / TERA)
    plain = job(layer(parameters=dense(1)), optimizer=Optimizer.SGD, precision=Precision.BF16)
    assert updated(plain) == pytest.approx(2 * GB * (2 + 2 * 2) / TERA)


def summed(facts: Facts, micro_batches: int = 4, **fields: Any) -> float:
    """Return the bytes that adding gradients moves for each parameter of a layer."""
    found = updated(facts, gradient_accumulation_steps=micro_batches, **fields) - updated(facts, **fields)
    return found * TERA / (2 * GB)


def test_gradients_are_added_to_those_of_micro_batches_before() -> None:
    facts = job(layer(parameters=dense(1)), stack={"elementwise_factor": 1.5})
    # both are read and one is written, four bytes each
    assert summed(facts) == pytest.approx(3 * 12 * 1.5)
    assert summed(facts, micro_batches=1) == 0
    assert summed(facts, dp_replicate=4) == pytest.approx(3 * 12 * 1.5)
    assert summed(facts, dp_shard=4, shard=Shard.PARAMETERS) == pytest.approx(3 * 12 * 1.5 / 4)
    in_stages = {"pp": 2, **ONE_F_ONE_B}
    # a pipeline reduces once a step: until then they are whole, and come in the format of products
    fsdp = {"dp_shard": 4, "shard": Shard.PARAMETERS}
    assert summed(facts, **in_stages) == pytest.approx(3 * 12 * 1.5 / 2)
    assert summed(facts, **in_stages, **fsdp) == pytest.approx(3 * 10 * 1.5 / 2)


def test_stacks_that_fuse_by_hand_add_gradients_in_products() -> None:
    assert summed(job(layer(parameters=dense(1)), stack={"kernels": Kernels.FUSED})) == 0


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"dp_replicate": 4}, 1),
        ({"dp_shard": 4}, 1),
        ({"dp_shard": 4, "shard": Shard.OPTIMIZER}, 1 / 4),
        ({"dp_shard": 4, "shard": Shard.GRADIENTS}, 1 / 4),
        ({"dp_shard": 4, "shard": Shard.PARAMETERS}, 1 / 4),
        ({"dp_replicate": 2, "dp_shard": 4, "shard": Shard.PARAMETERS}, 1 / 4),
        ({"dp_shard": 4, "tp": 2, "shard": Shard.PARAMETERS}, 1 / 8),
    ],
)
def test_each_rank_updates_its_shard(fields: dict[str, Any], share: float) -> None:
    facts = job(layer(parameters=dense(8)))
    assert updated(facts, **fields) == pytest.approx(share * 2 * 8 * GB * 28 / TERA)


def test_experts_are_updated_where_they_are() -> None:
    # ep 4 leaves a quarter, over 8 / 4 ranks
    facts = job(layer(parameters=dense(8, Split.EXPERT)))
    found = updated(facts, dp_shard=8, ep=4, shard=Shard.PARAMETERS)
    assert found == pytest.approx(2 * 8 * GB / 8 * 28 / TERA)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_a_pipeline_that_reshards_gathers_once_more_for_each_micro_batch(micro_batches: int) -> None:
    """Of 4 micro-batches torch 2.13 gathers a unit 5 times and reduces it once."""
    # a layer of a billion parameters on each of two stages, which moves 2 bytes up and 4 down at 100 GB/s
    facts = job(block(repeat=2, parameters=dense(1)), device=NO_COPIES)
    shards: dict[str, Any] = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    pipeline = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
    fields = {**shards, **pipeline, "gradient_accumulation_steps": micro_batches}
    gathered, reduced = 2 * GB / 2 / (100 * GB), 4 * GB / 2 / (100 * GB)
    found = step(facts, **fields).dp_exposed
    assert found == pytest.approx((micro_batches + 1) * gathered + reduced)
    kept = step(facts, **fields, reshard_after_forward=False).dp_exposed
    assert kept == pytest.approx(gathered + reduced)


#: of a device whose memory takes no time, so that nothing is copied
NO_COPIES = {"memory_bytes_per_s": 1e30}
#: gradients of 2 x 1 billion parameters take 2 x 1/2 x 8 GB at 100 GB/s, compute takes 2 x 3 s
REDUCTION = 0.08


def test_compute_hides_the_stacks_share_of_data_parallelism() -> None:
    facts = job(layer(parameters=dense(1)), stack={"dp_overlap": 0.75})
    assert step(facts, dp_replicate=2).dp_exposed == pytest.approx(REDUCTION / 4)


def test_ddp_hides_behind_one_backward_at_most() -> None:
    # a layer of 1 ms forward: two backwards take 4 ms, and the step is as long as what they hide behind
    light = block(matmul(TERA / 1000), repeat=2, parameters=dense(1))
    facts = job(light, stack={"dp_overlap": 0.75, "step_constant_s": 1.0}, device=NO_COPIES)
    found = step(facts, dp_replicate=2, gradient_accumulation_steps=3)
    assert found.dp_exposed == pytest.approx(REDUCTION - 0.004)


def test_interleaved_stages_reduce_beside_the_last_group_of_micro_batches() -> None:
    # on each of 2 ranks 2 layers of 2 ms backward; a group is 2 micro-batches, half of it one chunk's
    light = block(matmul(TERA / 1000), repeat=4, parameters=dense(1))
    facts = job(light, stack={"dp_overlap": 0.75, "step_constant_s": 1.0}, device=NO_COPIES)
    fields = {"pp": 2, "dp_replicate": 2, "gradient_accumulation_steps": 8, **ONE_F_ONE_B}
    assert step(facts, **fields).dp_exposed == pytest.approx(REDUCTION - 0.004)
    interleaved = fields | {"virtual_stages": 2, "pp_schedule": PipelineSchedule.INTERLEAVED}
    assert step(facts, **interleaved).dp_exposed == pytest.approx(REDUCTION - 2 * 0.004 / 2)
    stack = {"dp_overlap": 0.75, "step_constant_s": 1.0}
    wide = job(replace(light, repeat=8), stack=stack, device=NO_COPIES)
    found = step(wide, **(interleaved | {"virtual_stages": 4})).dp_exposed
    assert found == pytest.approx(2 * REDUCTION - 2 * 0.008 * 3 / 4)


def test_fsdp_hides_behind_all_compute_at_most() -> None:
    # each of 3 micro-batches gathers 2 x 2 bytes and reduces 4 of 2 billion: 0.08 s; computes 6 ms
    light = block(matmul(TERA / 1000), repeat=2, parameters=dense(1))
    facts = job(light, stack={"fsdp_overlap": 0.75, "step_constant_s": 1.0}, device=NO_COPIES)
    fields = {"dp_shard": 2, "shard": Shard.PARAMETERS, "gradient_accumulation_steps": 3}
    assert step(facts, **fields).dp_exposed == pytest.approx(3 * (0.08 - 0.006))
    heavy = job(layer(parameters=dense(1)), stack={"fsdp_overlap": 0.75}, device=NO_COPIES)
    assert step(heavy, **fields).dp_exposed == pytest.approx(3 * 0.08 / 4)


def test_only_units_are_gathered_for_each_pass() -> None:
    # outside the repeated blocks parameters are gathered once: 2 + 4 bytes, not 2 x 2 + 4
    root = job(layer(parameters=dense(1), unit=False), device=NO_COPIES)
    fields = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    assert step(root, **fields).dp_exposed == pytest.approx(1 / 2 * 2 * 6 * GB / (100 * GB))


def test_one_process_needs_no_link_and_two_do() -> None:
    unknown = {"scale_up": None, "scale_out": None}
    alone = job(layer(), hardware={"devices_per_node": 1, "scale_up_devices": 1, **unknown})
    assert step(alone).step == pytest.approx(6)
    with pytest.raises(ProfileError, match="no link between"):
        step(job(layer(), hardware={"devices_per_node": 2, "scale_up_devices": 2, **unknown}))


def test_the_slowest_rank_decides() -> None:
    # a head of 5 seconds forward stands alone on the last of two ranks; the four layers take 4
    head = block(matmul(5 * TERA), name="head", unit=False)
    facts = job(layer(repeat=4), head)
    four: dict[str, Any] = {"pp": 2, "gradient_accumulation_steps": 4, **ONE_F_ONE_B}
    assert step(facts, **four).compute == pytest.approx(4 * 15)
    # the layers' rank has much to update: 4 x 12 s and 4 x 28 GB x 5 at 1 TB/s against 4 x 15 s
    heavy = job(layer(repeat=4, parameters=dense(500)), head, precision=Precision.FP32)
    assert step(heavy, **four).compute == pytest.approx(4 * 12)


def test_the_slowest_rank_waits_for_one_micro_batch_of_all_others() -> None:
    # a head of 5 seconds forward beside one of four layers on the last rank; backward takes twice that
    head = block(matmul(5 * TERA), name="head", unit=False)
    facts = job(layer(repeat=4), head, model={"stage_load": StageLoad.LAYERS})
    found = step(facts, pp=4, gradient_accumulation_steps=8, **ONE_F_ONE_B)
    assert found.compute == pytest.approx(8 * (3 + 15))
    assert found.pp_bubble == pytest.approx(3 * 3)


@pytest.mark.parametrize(
    ("field", "kind", "wider"),
    [
        ("sustained.bf16", FigureKind.ASSUMED, True),
        ("memory_bytes_per_s", FigureKind.ASSUMED, True),
        ("matmul.m_half", FigureKind.ASSUMED, True),
        ("launch_s", FigureKind.ASSUMED, True),
        ("memory_bytes", FigureKind.ASSUMED, False),
        ("launch_s", FigureKind.MEASURED, False),
    ],
)
def test_an_assumed_rate_widens_the_interval(field: str, kind: FigureKind, wider: bool) -> None:
    entry = Provenance(field=field, kind=kind, source="made up")
    found = step(job(layer(), device={"provenance": (entry,)}, stack={"time_spread": 0.3}))
    spread = math.sqrt(0.3**2 + math.log(2) ** 2) if wider else 0.3
    assert found.step_low == pytest.approx(found.step * math.exp(-spread))
    assert found.step_high == pytest.approx(found.step * math.exp(spread))


PLANS = (
    {},
    {"dp_replicate": 8},
    {"dp_replicate": 2, "dp_shard": 4, "shard": Shard.PARAMETERS, "gradient_accumulation_steps": 2},
    {"dp_shard": 8, "shard": Shard.OPTIMIZER, "offload": Offload.OPTIMIZER},
    {"dp_shard": 8, "ep": 8, "shard": Shard.PARAMETERS, "reshard_after_forward": False},
    {"tp": 4, "cp": 2, "sequence_parallel": True, "async_tp": True, "recompute": Recompute.SELECTIVE},
    EVERYTHING,
)


@settings(max_examples=60)
@given(
    st.sampled_from(PLANS),
    st.sampled_from(["scale_up", "scale_out", "memory", "host"]),
    st.floats(1.0, 100.0),
)
def test_more_bandwidth_never_costs_time(fields: dict[str, Any], which: str, factor: float) -> None:
    slow = full_model()
    hardware = slow.hardware
    if which in ("scale_up", "scale_out"):
        link = INSIDE if which == "scale_up" else BETWEEN
        changes: dict[str, Any] = {which: faster_link(link, factor)}
    else:
        name = "memory_bytes_per_s" if which == "memory" else "host_bytes_per_s"
        rate = getattr(hardware.device, name) * factor
        changes = {"device": replace(hardware.device, **{name: rate})}
    fast = replace(slow, hardware=replace(hardware, **changes))
    assert step(fast, **fields).step <= step(slow, **fields).step * (1 + 1e-12)


def faster_link(link: Link, factor: float) -> Link:
    return replace(link, bytes_per_s=link.bytes_per_s * factor)


def test_plans_together_are_the_plans_one_by_one() -> None:
    facts = full_model()
    plans: list[Plan] = [plan(**fields) for fields in PLANS]
    together = [case.estimate.time for case in assess_all(facts, plans)]
    for one, other in zip(together, [assess(facts, each).estimate.time for each in plans], strict=True):
        assert one.parts == pytest.approx(other.parts)
        assert (one.step_low, one.step_high) == pytest.approx((other.step_low, other.step_high))


def test_steps_of_many_plans_at_once_are_those_of_few(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = full_model()
    columns = Columns(facts_columns(facts) | plans_table([plan(**fields) for fields in PLANS]))
    together = step_s(facts, columns).tolist()
    for most in (1, 3):
        monkeypatch.setattr("parastrat.cost.step._MOST", most)
        assert step_s(facts, columns).tolist() == together
