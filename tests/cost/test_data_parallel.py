"""Which buffers data parallelism moves, how often, over which ranks, and what compute can hide of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import FABRIC, GB, job, row

from parastrat.case import Facts
from parastrat.cost.data_parallel import UnitSeconds, data_parallel_s, fsdp_unit_s, gatherings
from parastrat.cost.expert_sums import expert_sum_s, expert_sums
from parastrat.hardware import DeviceType
from parastrat.plan import PipelineSchedule, Shard
from parastrat.ranks import ParameterTotals, RankLoad
from parastrat.workload import Precision

#: 2 bytes gathered for the forward and 4 reduced in fp32 for each parameter, in bf16-mixed
GATHERED, REDUCED = 2 * GB, 4 * GB
INSIDE, BETWEEN = 100 * GB, 10 * GB

PIPELINE = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B}
SHARDED = {"shard": Shard.PARAMETERS}


def load(*, trainable: float = 0, root: float = 0, frozen: float = 0, expert: float = 0) -> RankLoad:
    """Return a rank's billions of parameters, tensor-parallel ones unless named otherwise."""
    return RankLoad(
        rank=0,
        repeats=(1,),
        trainable=ParameterTotals(tensor=int(trainable * GB), expert=int(expert * GB)),
        frozen=ParameterTotals(tensor=int(frozen * GB)),
        root=ParameterTotals(tensor=int(root * GB)),
    )


def total(held: RankLoad, units_s: float = 0.0, facts: Facts | None = None, **plan: Any) -> float:
    found = data_parallel_s(facts or job(), row(**plan), held, FABRIC, UnitSeconds(units_s, 0.0))
    return float((found["each"] + found["alone"]) * gatherings(row(**plan)) + found["once"])


def overlap(facts: Facts, shard: Shard) -> float:
    units = UnitSeconds(0.0, 0.0)
    return float(data_parallel_s(facts, row(dp_shard=2, shard=shard), load(), FABRIC, units)["overlap"])


def unit_s(*, tensor: float = 0, replicated: float = 0, expert: float = 0, **plan: Any) -> float:
    totals = ParameterTotals(
        tensor=int(tensor * GB), replicated=int(replicated * GB), expert=int(expert * GB)
    )
    return float(sum(fsdp_unit_s(job(), row(**plan), totals, FABRIC)))


@pytest.mark.parametrize(
    ("plan", "gathers"),
    [
        ({}, 2),
        ({"reshard_after_forward": False}, 1),
        # torch's pipeline stages gather once a step, and again for the micro-batch if they reshard
        (PIPELINE, 2),
        (PIPELINE | {"reshard_after_forward": False}, 1),
    ],
)
def test_a_unit_is_gathered_for_each_pass_that_finds_it_sharded(plan: dict[str, Any], gathers: int) -> None:
    # 1/2 of each buffer comes from the other rank
    expected = 1 / 2 * (gathers * GATHERED + REDUCED) / INSIDE
    assert unit_s(tensor=1, dp_shard=2, **SHARDED, **plan) == pytest.approx(expected)


def test_tp_divides_a_unit_and_its_ranks_stand_tp_apart() -> None:
    # 8 GB over tp 8; the 4 ranks that share a shard are one on each node: 3/4 over one card
    found = unit_s(tensor=8, dp_shard=4, tp=8, **SHARDED)
    assert found == pytest.approx(3 / 4 * (2 * GATHERED + REDUCED) / BETWEEN)
    assert unit_s(replicated=1, dp_shard=4, tp=8, **SHARDED) == pytest.approx(found)


def test_context_ranks_share_the_shards() -> None:
    # 2 x 2 ranks: 3/4 of each buffer
    assert unit_s(tensor=1, dp_shard=2, cp=2, **SHARDED) == pytest.approx(
        3 / 4 * (2 * GATHERED + REDUCED) / INSIDE
    )


def test_experts_are_sharded_over_what_ep_leaves() -> None:
    # 8 experts' billions on ep 4 leave 2 GB each, over dp_shard 4 x tp 2 / ep 4 = 2 ranks, 4 apart
    found = unit_s(expert=8, dp_shard=4, tp=2, ep=4, **SHARDED)
    assert found == pytest.approx(1 / 2 * 2 * (2 * GATHERED + REDUCED) / INSIDE)
    # 16 ranks with ep 8: the 2 that share experts are 8 apart, on two nodes
    far = unit_s(expert=8, dp_shard=16, ep=8, **SHARDED)
    assert far == pytest.approx(1 / 2 * (2 * GATHERED + REDUCED) / BETWEEN)


def test_ranks_that_share_experts_stand_ep_apart() -> None:
    # ep 2 inside tp 8: 8 ranks share, 4 on each of two nodes; half of the buffer comes over 4 cards
    found = unit_s(expert=2, dp_shard=2, tp=8, ep=2, **SHARDED)
    assert found == pytest.approx(1 / 2 * (2 * GATHERED + REDUCED) / (4 * BETWEEN))


def test_a_unit_without_experts_costs_them_not_even_a_hop() -> None:
    slow = replace(FABRIC, scale_up=replace(FABRIC.scale_up, latency_s=1.0))
    one = ParameterTotals(tensor=1)
    # 3 collectives of one hop; of a single parameter the bytes do not show
    assert sum(fsdp_unit_s(job(), row(dp_shard=2, **SHARDED), one, slow)) == pytest.approx(3)


def test_experts_without_ep_are_divided_by_tp_as_the_rest_is() -> None:
    assert unit_s(expert=8, dp_shard=4, tp=8, **SHARDED) == pytest.approx(
        unit_s(tensor=8, dp_shard=4, tp=8, **SHARDED)
    )


def test_dense_and_expert_parameters_of_a_unit_add_up() -> None:
    plan = {"dp_shard": 8, "ep": 4, **SHARDED}
    assert unit_s(tensor=1, expert=8, **plan) == pytest.approx(
        unit_s(tensor=1, **plan) + unit_s(expert=8, **plan)
    )


def test_fsdp_repeats_its_collectives_for_every_micro_batch() -> None:
    # root: gathered once and reduced once; units: as given
    root = 1 / 2 * (GATHERED + REDUCED) / INSIDE
    plan = {"dp_shard": 2, **SHARDED}
    assert total(load(trainable=1, root=1), 0.5, **plan) == pytest.approx(root + 0.5)
    found = total(load(trainable=1, root=1), 0.5, gradient_accumulation_steps=3, **plan)
    assert found == pytest.approx(3 * (root + 0.5))


def test_nothing_runs_beside_the_gathering_of_the_root() -> None:
    found = data_parallel_s(job(), row(dp_shard=2, **SHARDED), load(root=1), FABRIC, UnitSeconds(0.5, 0.0))
    assert float(found["alone"]) == pytest.approx(1 / 2 * GATHERED / INSIDE)
    assert float(found["each"]) == pytest.approx(1 / 2 * REDUCED / INSIDE + 0.5)


def test_a_pipeline_gathers_and_reduces_once_a_step() -> None:
    plan = {"dp_shard": 2, "gradient_accumulation_steps": 3, **SHARDED, **PIPELINE}
    assert total(load(root=1), 0.5, **plan) == pytest.approx(1 / 2 * (GATHERED + REDUCED) / INSIDE + 0.5)


def test_replicas_reduce_their_shards_once_a_step() -> None:
    # 8 GB over 8 shards; the two replicas are a node apart: 2 x 1/2 of 1/8 of the fp32 gradients
    plan = {"dp_replicate": 2, "dp_shard": 8, "gradient_accumulation_steps": 3, **SHARDED}
    found = total(load(trainable=8), **plan)
    assert found == pytest.approx(2 / 2 * REDUCED / BETWEEN)
    # what is frozen has no gradient
    assert total(load(trainable=8, frozen=8), **plan) == pytest.approx(found)


@pytest.mark.parametrize("axis", ["cp", "tp"])
def test_replicas_stand_all_inner_ranks_apart(axis: str) -> None:
    # 2 replicas of 4 shards x 2: on different nodes, and each holds 1/8
    plan: dict[str, Any] = {"dp_replicate": 2, "dp_shard": 4, axis: 2, **SHARDED}
    assert total(load(trainable=8), **plan) == pytest.approx(2 / 2 * REDUCED / BETWEEN)
    near: dict[str, Any] = {"dp_replicate": 2, "dp_shard": 2, axis: 2, **SHARDED}
    assert total(load(trainable=4), **near) == pytest.approx(2 / 2 * REDUCED / INSIDE)


def test_replicas_reduce_experts_too() -> None:
    # 8 GB over ep 4 and 8 / 4 shards
    plan = {"dp_replicate": 2, "dp_shard": 8, "ep": 4, **SHARDED}
    assert total(load(expert=8), **plan) == pytest.approx(2 / 2 * REDUCED / BETWEEN)


def test_weights_may_be_gathered_in_fp8_but_for_the_roots() -> None:
    facts = job(precision=Precision.FP8, stack={"gathers_fp8": True})
    found = total(load(trainable=3, root=1), facts=facts, dp_shard=4, shard=Shard.OPTIMIZER)
    # 4 bytes of each gradient, 1 of each weight in a block, 2 of others
    assert found == pytest.approx(3 / 4 * (3 * 4 + 2 * 1 + 1 * 2) * GB / INSIDE)
    totals = ParameterTotals(tensor=int(GB))
    unit = float(sum(fsdp_unit_s(facts, row(dp_shard=2, **SHARDED), totals, FABRIC)))
    assert unit == pytest.approx(1 / 2 * (2 * 1 + 4) * GB / INSIDE)
    # in other formats there is nothing in fp8
    short = float(
        sum(fsdp_unit_s(job(stack={"gathers_fp8": True}), row(dp_shard=2, **SHARDED), totals, FABRIC))
    )
    assert short == pytest.approx(1 / 2 * (2 * 2 + 4) * GB / INSIDE)


def test_units_reduce_gradients_in_the_format_that_they_are_kept_in() -> None:
    facts = job(stack={"mixed_gradient_bytes": 2, "dtensors": False})
    unit = float(
        sum(fsdp_unit_s(facts, row(dp_shard=2, **SHARDED), ParameterTotals(tensor=int(GB)), FABRIC))
    )
    assert unit == pytest.approx(1 / 2 * (2 * 2 + 2) * GB / INSIDE)


@pytest.mark.parametrize(("dtensors", "reduced"), [(True, 4), (False, 2)])
def test_fsdp2_reduces_gradients_in_fp32_whatever_weights_are_in(dtensors: bool, reduced: int) -> None:
    facts = job(precision=Precision.BF16, stack={"dtensors": dtensors})
    unit = fsdp_unit_s(facts, row(dp_shard=2, **SHARDED), ParameterTotals(tensor=int(GB)), FABRIC)
    assert float(sum(unit)) == pytest.approx(1 / 2 * (2 * 2 + reduced) * GB / INSIDE)


def test_ddp_reduces_all_gradients_once_a_step() -> None:
    for steps in (1, 3):
        found = total(load(trainable=1, root=1), 0.5, dp_replicate=4, gradient_accumulation_steps=steps)
        assert found == pytest.approx(2 * 3 / 4 * 4 * GB / INSIDE)


def test_ddp_reduces_gradients_in_their_own_format() -> None:
    short = job(precision=Precision.BF16)
    found = total(load(trainable=1), facts=short, dp_replicate=4)
    assert found == pytest.approx(2 * 3 / 4 * 2 * GB / INSIDE)


def test_ddp_reduces_over_context_ranks_and_what_tp_leaves() -> None:
    # 2 x 2 ranks, 2 apart, of 1/2 of the dense parameters and of the experts
    found = total(load(trainable=1, expert=1), dp_replicate=2, cp=2, tp=2)
    assert found == pytest.approx(2 * 3 / 4 * 4 * GB / INSIDE)
    # one rank on each node
    far = total(load(trainable=8), dp_replicate=2, tp=8)
    assert far == pytest.approx(2 / 2 * 4 * GB / BETWEEN)


@pytest.mark.parametrize("shard", [Shard.OPTIMIZER, Shard.GRADIENTS])
def test_zero_reduce_scatters_gradients_and_gathers_weights(shard: Shard) -> None:
    # 4 bytes of gradient out, 2 bytes of weight as forward reads it in
    found = total(load(trainable=1, expert=1), dp_shard=4, shard=shard, gradient_accumulation_steps=3)
    assert found == pytest.approx(3 / 4 * 2 * (4 + 2) * GB / INSIDE)


@pytest.mark.parametrize(
    ("shard", "share"),
    [(Shard.NONE, 0.1), (Shard.OPTIMIZER, 0.2), (Shard.GRADIENTS, 0.2), (Shard.PARAMETERS, 0.3)],
)
def test_each_kind_hides_its_own_share_and_none_on_hosts(shard: Shard, share: float) -> None:
    facts = job(stack={"dp_overlap": 0.1, "zero_overlap": 0.2, "fsdp_overlap": 0.3})
    assert (
        data_parallel_s(facts, row(dp_shard=2, shard=shard), load(), FABRIC, UnitSeconds(0.0, 0.0))[
            "overlap"
        ]
        == share
    )
    # whose cores compute
    host = job(
        stack={"dp_overlap": 0.1, "zero_overlap": 0.2, "fsdp_overlap": 0.3}, device={"type": DeviceType.CPU}
    )
    assert (
        data_parallel_s(host, row(dp_shard=2, shard=shard), load(), FABRIC, UnitSeconds(0.0, 0.0))[
            "overlap"
        ]
        == 0
    )


@pytest.mark.parametrize("shard", list(Shard))
def test_one_rank_moves_nothing(shard: Shard) -> None:
    assert total(load(trainable=1, root=1, expert=1), shard=shard) == 0


@pytest.mark.parametrize(
    ("plan", "size", "sums"),
    [
        ({}, REDUCED, 1),
        # each rank has a share of them when the step ends
        ({"dp_shard": 2, **SHARDED}, REDUCED / 2, 1),
        # a pipeline has whole ones of each micro-batch
        ({"gradient_accumulation_steps": 8, **PIPELINE}, GATHERED, 8),
    ],
)
def test_gradients_of_whole_experts_are_added_up_over_tp(
    plan: dict[str, Any], size: float, sums: int
) -> None:
    facts = job()
    facts = replace(facts, model=replace(facts.model, divides_tokens=True))

    def found(heads: int | None, held: RankLoad, **more: Any) -> float:
        fields = plan | {"tp": 2, "sequence_parallel": True} | more
        columns = row(**fields).joined({"token_heads": heads, "divides_experts": False})
        assert expert_sums(columns) == sums
        return float(expert_sum_s(facts, columns, held, FABRIC))

    held = load(trainable=3, expert=1)
    # of two ranks half goes to the other, and half of the sums comes back
    assert found(8, held) == pytest.approx(size / INSIDE)
    # neighbours all of them, so that eight are one node
    assert found(8, held, tp=8) == pytest.approx(7 / 4 * size / INSIDE)
    for nothing in (found(None, held), found(5, held), found(8, load(trainable=3))):
        assert nothing == 0
    assert found(8, held, sequence_parallel=False) == 0
