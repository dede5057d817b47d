"""What is copied beside products: FSDP2's gathered weights and gradients, and autocast's casts."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import GB, TERA, block, job, plan

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.estimate import TimeEstimate
from parastrat.model import Parameters, Split
from parastrat.plan import PipelineSchedule, Recompute, Shard
from parastrat.workload import Precision

FSDP: dict[str, Any] = {"dp_shard": 2, "shard": Shard.PARAMETERS, "reshard_after_forward": False}
#: of a parameter: bf16 read and written out of a gathering; bf16 read, and fp32 written, into a reduction
OUT, INTO = 4, 6
#: read in fp32 and written in bf16, and the other way round
CAST = 6


def holding(
    *, repeat: int = 2, frozen: float = 0, precision: Precision = Precision.BF16_MIXED, **stack: Any
) -> Facts:
    """Return a job of layers of a billion trained parameters, whose collectives take no time."""
    parts = (Parameters(trainable=int(GB), frozen=int(frozen * GB), split=Split.TENSOR),)
    layer = block(repeat=repeat, parameters=parts, unit=True)
    stack = {"network_efficiency": 1e15} | stack
    return job(layer, precision=precision, stack=stack)


def time(facts: Facts, **fields: Any) -> TimeEstimate:
    return assess(facts, plan(**fields)).estimate.time


def copied(facts: Facts, **fields: Any) -> float:
    """Return the bytes of each of two billion parameters that FSDP2 copies in a step."""
    return time(facts, **(FSDP | fields)).dp_exposed * TERA / (2 * GB)


def cast(facts: Facts, **fields: Any) -> float:
    """Return the bytes of each of two billion parameters that autocast reads and writes in a step."""
    return time(facts, **fields).compute * TERA / (2 * GB)


def test_fsdp2_copies_what_it_gathers_and_what_it_reduces() -> None:
    assert copied(holding()) == pytest.approx(OUT + INTO)
    assert copied(holding(), reshard_after_forward=True) == pytest.approx(2 * OUT + INTO)
    assert copied(holding(), gradient_accumulation_steps=3) == pytest.approx(3 * (OUT + INTO))
    assert copied(holding(elementwise_factor=1.5)) == pytest.approx(1.5 * (OUT + INTO))
    assert copied(holding(frozen=1)) == pytest.approx(2 * OUT + INTO)
    # nothing is whole on a rank of tp
    assert copied(holding(), tp=2) == pytest.approx((OUT + INTO) / 2)


@pytest.mark.parametrize(("number", "again"), [(None, 0), (4, 0), (1, 2), (3, 2)])
def test_experts_along_their_rows_are_copied_again_both_ways(number: int | None, again: int) -> None:
    parts = (Parameters(trainable=int(GB), split=Split.EXPERT),)
    layer = block(repeat=2, parameters=parts, unit=True)
    given = job(layer, stack={"network_efficiency": 1e15}, model={"experts": number})
    assert copied(given) == pytest.approx((OUT + INTO) + again * OUT)


def test_a_pipeline_copies_once_a_step() -> None:
    fields = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B, "gradient_accumulation_steps": 4}
    assert copied(holding(), **fields) == pytest.approx((OUT + INTO) / 2)
    again = copied(holding(), **fields, reshard_after_forward=True)
    assert again == pytest.approx((OUT + INTO + 4 * OUT) / 2)


def test_what_gathers_otherwise_copies_nothing() -> None:
    assert copied(holding(dtensors=False)) == pytest.approx(0)
    assert copied(holding(gathers_in_graph=True)) == pytest.approx(0)


def test_autocast_casts_weights_and_their_gradients() -> None:
    assert cast(holding()) == pytest.approx(2 * CAST)
    assert cast(holding(), dp_replicate=4) == pytest.approx(2 * CAST)
    assert cast(holding(), dp_shard=4, shard=Shard.OPTIMIZER) == pytest.approx(2 * CAST)
    assert cast(holding(), tp=2) == pytest.approx(CAST)
    assert cast(holding(), gradient_accumulation_steps=3) == pytest.approx(3 * 2 * CAST)
    assert cast(holding(), recompute=Recompute.FULL) == pytest.approx(3 * CAST)
    assert cast(holding(frozen=1)) == pytest.approx(3 * CAST)


def test_what_is_kept_short_or_sharded_is_not_cast() -> None:
    assert cast(holding(), **FSDP) == pytest.approx(0)
    assert cast(holding(precision=Precision.FP32)) == pytest.approx(0)
    assert cast(holding(mixed_parameter_bytes=2)) == pytest.approx(0)


def test_a_pipeline_waits_for_the_casts_of_others() -> None:
    fields = {"pp": 2, "pp_schedule": PipelineSchedule.ONE_F_ONE_B, "gradient_accumulation_steps": 4}
    found = time(holding(), **fields)
    one = 2 * CAST * GB / TERA
    assert found.compute == pytest.approx(4 * one)
    assert found.pp_bubble == pytest.approx(one)
