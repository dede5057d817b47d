"""Timelines of plans beside their estimates."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import GB, TERA, block, job, matmul, plan

from parastrat.assess import assess
from parastrat.case import Case
from parastrat.model import Parameters, Split
from parastrat.plan import PipelineSchedule, Shard
from parastrat.timeline import timeline_of
from parastrat.timeline.kinds import Kind


def case(**fields: Any) -> Case:
    """Return eight equal layers of a second forward and two backward, with 0.1 G parameters each."""
    layer = block(
        matmul(TERA),
        repeat=8,
        boundary_bytes=GB / 100,
        parameters=(Parameters(trainable=int(GB / 10), split=Split.TENSOR),),
    )
    return assess(job(layer, stack={"fsdp_overlap": 0.8, "dp_overlap": 0.6}), plan(**fields))


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        (PipelineSchedule.GPIPE, 1),
        (PipelineSchedule.ONE_F_ONE_B, 1),
        (PipelineSchedule.INTERLEAVED, 2),
        (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 2),
        (PipelineSchedule.ZBV, 2),
    ],
)
def test_pipelines_take_what_is_estimated(schedule: PipelineSchedule, chunks: int) -> None:
    made = case(pp=2, pp_schedule=schedule, virtual_stages=chunks, gradient_accumulation_steps=8)
    found, time = timeline_of(made), made.estimate.time
    assert found is not None
    assert [lane.name for lane in found.lanes] == ["rank 0", "rank 1"]
    # transfers: the estimate counts every one, of a second in all
    assert found.seconds <= time.step
    assert found.seconds == pytest.approx(time.compute + time.pp_bubble, abs=time.pp_exposed)
    assert found.exposed == pytest.approx(found.seconds - time.compute)
    assert found.collectives == 0


@pytest.mark.parametrize("fields", [{"dp_shard": 8, "shard": Shard.PARAMETERS}, {"dp_replicate": 8}])
@pytest.mark.parametrize("batches", [1, 2, 8])
def test_collectives_hide_about_as_estimated(fields: dict[str, Any], batches: int) -> None:
    made = case(**fields, gradient_accumulation_steps=batches)
    found, time = timeline_of(made), made.estimate.time
    assert found is not None
    assert found.seconds == pytest.approx(time.step - time.optimizer, rel=0.02)
    assert found.exposed == pytest.approx(found.seconds - time.compute)
    assert 0 < found.exposed < found.collectives
    assert found.micro_batches == min(batches, 3)


def test_micro_batches_that_are_left_out_count(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Any] = {"dp_shard": 8, "shard": Shard.PARAMETERS, "gradient_accumulation_steps": 8}
    some = timeline_of(case(**fields))
    monkeypatch.setattr("parastrat.timeline.of_plan._ALIKE", 8)
    every = timeline_of(case(**fields))
    assert some is not None
    assert every is not None
    assert every.shown == every.seconds > some.shown
    assert some.seconds == pytest.approx(every.seconds)
    assert some.collectives == pytest.approx(every.collectives)


def test_one_device_has_none() -> None:
    assert timeline_of(case()) is None


def test_what_lanes_hold() -> None:
    found = timeline_of(case(dp_shard=8, shard=Shard.PARAMETERS))
    assert found is not None
    assert [lane.name for lane in found.lanes] == ["compute", "gather", "reduce"]
    compute, gather, reduce = found.lanes
    kinds = [piece.kind for piece in compute.pieces]
    assert kinds == [Kind.FORWARD] * 8 + [Kind.BACKWARD] * 8
    # the last layer is still there as backward begins
    assert len(gather.pieces) == 15
    assert len(reduce.pieces) == 8
    assert compute.busy == pytest.approx(24, rel=0.1)
