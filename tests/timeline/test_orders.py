"""The order of every schedule is torch's own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.distributed.pipelining.schedules import get_schedule_class

from parastrat.plan import PipelineSchedule
from parastrat.timeline.kinds import Kind
from parastrat.timeline.orders import orders

LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
CHUNKS = {
    PipelineSchedule.INTERLEAVED: (2, 3, 4),
    PipelineSchedule.LOOPED_BFS: (1, 2, 3),
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE: (1, 2, 3),
    PipelineSchedule.ZBV: (2,),
    PipelineSchedule.DUAL_PIPE_V: (2,),
}
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def of_torch(name: str, pp: int, chunks: int, batches: int) -> list[list[tuple[str, int, int]]]:
    """Return what torch's schedule computes, which needs no more of it than these numbers."""
    found = []
    rounds = max(1, batches // pp)
    for rank in range(pp):
        schedule: Any = object.__new__(get_schedule_class(name))
        schedule.__dict__.update(
            pp_group_size=pp,
            rank=rank,
            n_local_stages=chunks,
            num_stages=pp * chunks,
            number_of_rounds=rounds,
            microbatches_per_round=batches // rounds,
            _n_microbatches=batches,
            _stages=[None] * chunks,
        )
        told = (action for action in schedule._calculate_single_rank_operations(rank) if action is not None)
        single = (one for action in told for one in (action.sub_actions or (action,)))
        found.append(
            [(LETTERS[one.computation_type.name], one.stage_index, one.microbatch_index) for one in single]
        )
    return found


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "chunks"), [(schedule, chunks) for schedule, some in CHUNKS.items() for chunks in some]
)
def test_orders_are_those_of_torch(schedule: PipelineSchedule, chunks: int, pp: int) -> None:
    tried = 0
    for batches in BATCHES:
        in_rounds = schedule in (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)
        if in_rounds and batches % max(1, batches // pp):
            continue
        if schedule is PipelineSchedule.DUAL_PIPE_V and batches < 2 * pp:
            continue
        ours = [
            [(action.kind.value, action.stage, action.micro_batch) for action in rank]
            for rank in orders(schedule, pp, chunks, batches)
        ]
        assert ours == of_torch(schedule.value, pp, chunks, batches), batches
        tried += 1
    assert tried >= 2


def test_gpipe_and_1f1b_by_hand() -> None:
    def letters(schedule: PipelineSchedule) -> list[str]:
        return [
            " ".join(f"{action.kind.value}{action.micro_batch}" for action in rank)
            for rank in orders(schedule, 2, 1, 3)
        ]

    assert letters(PipelineSchedule.GPIPE) == ["F0 F1 F2 B0 B1 B2"] * 2
    assert letters(PipelineSchedule.ONE_F_ONE_B) == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]


@pytest.mark.parametrize("schedule", PipelineSchedule)
def test_every_micro_batch_passes_every_stage_once_each_way(schedule: PipelineSchedule) -> None:
    chunks = 1 if schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B) else 2
    counts: Counter[tuple[Kind, int, int]] = Counter()
    for rank in orders(schedule, 4, chunks, 8):
        counts.update(tuple(action) for action in rank)
    assert set(counts.values()) == {1}
    for stage in range(4 * chunks):
        for batch in range(8):
            assert (Kind.FORWARD, stage, batch) in counts
            whole = (Kind.BACKWARD, stage, batch) in counts
            halves = [(kind, stage, batch) in counts for kind in (Kind.INPUTS, Kind.WEIGHTS)]
            assert halves == [not whole] * 2


def test_too_few_micro_batches_for_dual_pipe_v() -> None:
    with pytest.raises(ValueError, match="DualPipeV with 3 micro-batches for 4 stages"):
        orders(PipelineSchedule.DUAL_PIPE_V, 2, 2, 3)
