from __future__ import annotations

import pytest
from builders import codes

from parastrat.plan import Compile, PipelineSchedule, Recompute

SPLIT = [PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V]
WHOLE = {"pp_schedule": PipelineSchedule.INTERLEAVED, "virtual_stages": 2}


def piped(**changes: object) -> set[str]:
    """A good pipeline of four stages and two chunks a rank, but for what a test changes."""
    good = {"pp": 4, "gradient_accumulation_steps": 16, "splits_backward": True}
    return codes(**(good | WHOLE | changes))


@pytest.mark.parametrize("schedule", SPLIT)
def test_split_backward_repeats_recompute(schedule: PipelineSchedule) -> None:
    for recompute in (Recompute.SELECTIVE, Recompute.FULL):
        assert "PS715" in piped(pp_schedule=schedule, recompute=recompute)
        assert "PS715" not in piped(recompute=recompute)
    for recompute in (Recompute.NONE, Recompute.ATTENTION):
        assert "PS715" not in piped(pp_schedule=schedule, recompute=recompute)


@pytest.mark.parametrize("schedule", SPLIT)
def test_split_backward_is_compiled(schedule: PipelineSchedule) -> None:
    assert "PS716" in piped(pp_schedule=schedule, compile=Compile.BLOCK)
    assert "PS716" not in piped(compile=Compile.BLOCK)
    assert "PS716" not in piped(pp_schedule=schedule)


@pytest.mark.parametrize("schedule", SPLIT)
def test_stack_never_splits_backward(schedule: PipelineSchedule) -> None:
    assert "PS717" in piped(pp_schedule=schedule, splits_backward=False)
    assert "PS717" not in piped(splits_backward=False)
    assert "PS717" not in piped(pp_schedule=schedule)
    # one finding is enough
    assert "PS717" not in piped(pp_schedule=schedule, splits_backward=False, compile=Compile.BLOCK)


@pytest.mark.parametrize("schedule", SPLIT)
def test_zero_bubble_is_unmeasured(schedule: PipelineSchedule) -> None:
    assert "PS718" in piped(pp_schedule=schedule)
    assert "PS718" not in piped()
    # what cannot run need not be measured
    assert "PS718" not in piped(pp_schedule=schedule, compile=Compile.BLOCK)
