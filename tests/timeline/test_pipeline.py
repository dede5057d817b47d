"""Pipelines run action by action, and what the cost model says of them in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jobs import row

from parastrat.cost.bubble import bubble_s
from parastrat.plan import PipelineSchedule
from parastrat.schedules import V_SHAPED
from parastrat.timeline.orders import orders
from parastrat.timeline.pipeline import Span, Stage, run

PLAIN = [
    (PipelineSchedule.GPIPE, 1),
    (PipelineSchedule.ONE_F_ONE_B, 1),
    (PipelineSchedule.LOOPED_BFS, 2),
    (PipelineSchedule.INTERLEAVED, 2),
    (PipelineSchedule.INTERLEAVED, 3),
]
SPLIT = [
    (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 1),
    (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, 2),
    (PipelineSchedule.ZBV, 2),
    (PipelineSchedule.DUAL_PIPE_V, 2),
]


def ran(
    schedule: PipelineSchedule,
    pp: int,
    chunks: int,
    batches: int,
    seconds: tuple[float, float, float],
    send: float = 0.0,
) -> tuple[tuple[Span, ...], ...]:
    """Return a pipeline of equal stages; a rank's forward, inputs and weights take these seconds."""
    stages = []
    for number in range(pp * chunks):
        lap, place = divmod(number, pp)
        back = schedule in V_SHAPED and lap % 2
        forward, inputs, weights = (each / chunks for each in seconds)
        stages.append(
            Stage(rank=pp - 1 - place if back else place, forward=forward, inputs=inputs, weights=weights)
        )
    return run(orders(schedule, pp, chunks, batches), stages, send)


def step_of(spans: tuple[tuple[Span, ...], ...]) -> float:
    return max(own[-1].end for own in spans)


def bubble(
    schedule: PipelineSchedule, pp: int, chunks: int, batches: int, seconds: tuple[float, float, float]
) -> float:
    """Return the bubble that the cost model gives."""
    forward, inputs, weights = seconds
    columns = row(pp=pp, pp_schedule=schedule, virtual_stages=chunks, gradient_accumulation_steps=batches)
    others = {
        "compute": sum(seconds),
        "forward": forward,
        "backward": inputs + weights,
        "weights": weights,
        "sent_forward": 0.0,
        "tp_exposed": 0.0,
        "cp_exposed": 0.0,
        "ep_exposed": 0.0,
    }
    every = {part: (pp - 1) * np.ones(1) * each for part, each in others.items()}
    return float(bubble_s(columns, dict.fromkeys(every, 0.0), every)[0])


def test_two_stages_of_1f1b_by_hand() -> None:
    first, second = ran(PipelineSchedule.ONE_F_ONE_B, 2, 1, 2, (1, 1, 1), send=0.5)
    assert [(span.start, span.end) for span in first] == [(0, 1), (1, 2), (5, 7), (8, 10)]
    assert [(span.start, span.end) for span in second] == [(1.5, 2.5), (2.5, 4.5), (4.5, 5.5), (5.5, 7.5)]


def test_a_link_takes_one_transfer_after_the_other() -> None:
    _, second = ran(PipelineSchedule.GPIPE, 2, 1, 3, (1, 1, 1), send=4)
    assert [span.start for span in second[:3]] == [5, 9, 13]


@given(
    drawn=st.sampled_from(PLAIN),
    pp=st.integers(2, 6),
    rounds=st.integers(1, 4),
    seconds=st.tuples(*[st.floats(0.1, 3)] * 3),
)
def test_plain_schedules_wait_as_the_cost_model_says(
    drawn: tuple[PipelineSchedule, int], pp: int, rounds: int, seconds: tuple[float, float, float]
) -> None:
    schedule, chunks = drawn
    batches = pp * rounds
    waits = step_of(ran(schedule, pp, chunks, batches, seconds)) - batches * sum(seconds)
    assert waits == pytest.approx(bubble(schedule, pp, chunks, batches, seconds))


@given(
    drawn=st.sampled_from(SPLIT),
    pp=st.sampled_from([2, 3, 4, 6]),
    rounds=st.integers(2, 4),
    inputs=st.floats(1, 3),
    weights=st.floats(0.2, 1),
)
def test_schedules_that_split_backward_wait_for_less(
    drawn: tuple[PipelineSchedule, int], pp: int, rounds: int, inputs: float, weights: float
) -> None:
    schedule, chunks = drawn
    batches, seconds = pp * rounds, (1.0, inputs, weights)
    step = step_of(ran(schedule, pp, chunks, batches, seconds))
    told = bubble(schedule, pp, chunks, batches, seconds)
    # of about equal parts most of the bubble is filled
    if inputs < 2 and weights > 0.7:
        assert told < 0.8 * (pp - 1) * sum(seconds) / chunks
    off = (told + batches * sum(seconds)) / step - 1
    assert abs(off) < {PipelineSchedule.ZBV: 1e-9, PipelineSchedule.DUAL_PIPE_V: 0.03}.get(schedule, 0.01)


@pytest.mark.parametrize(
    ("schedule", "chunks", "transfers"),
    [
        (PipelineSchedule.GPIPE, 1, 6),
        (PipelineSchedule.LOOPED_BFS, 2, 6),
        (PipelineSchedule.INTERLEAVED, 2, 14),
        # there and back while a rank waits, for each but the first and the last few
        (PipelineSchedule.ONE_F_ONE_B, 1, 28),
    ],
)
def test_steps_wait_for_transfers_on_their_longest_path(
    schedule: PipelineSchedule, chunks: int, transfers: int
) -> None:
    seconds, send = (1.0, 1.3, 0.9), 0.01
    longer = step_of(ran(schedule, 4, chunks, 16, seconds, send)) - step_of(
        ran(schedule, 4, chunks, 16, seconds)
    )
    assert longer == pytest.approx(transfers * send)


def test_actions_that_wait_for_each_other_are_told() -> None:
    first, second = orders(PipelineSchedule.GPIPE, 2, 1, 1)
    stages = [Stage(rank=rank, forward=1, inputs=1, weights=1) for rank in (0, 1)]
    with pytest.raises(ValueError, match="wait for each other"):
        run((first[::-1], second), stages, 0.0)
