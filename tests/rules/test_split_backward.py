from __future__ import annotations

from dataclasses import replace

import pytest
from builders import codes
from jobs import block

from parastrat.model import Parameters, Split
from parastrat.plan import Compile, PipelineSchedule, Recompute, Shard

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


def test_tied_weight_is_sharded_twice() -> None:
    table = Parameters(trainable=8, split=Split.VOCABULARY, tie_group="table")
    ends, alone = (block(parameters=(own,), unit=False) for own in (table, replace(table, tie_group=None)))
    bent = {"pp_schedule": PipelineSchedule.ZBV, "blocks": (ends, alone, ends)}
    sharded = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    assert "PS719" in piped(**bent, **sharded)
    assert "PS719" in piped(**bent, cp=2, shard=Shard.PARAMETERS)
    for other in (
        {"pp_schedule": PipelineSchedule.INTERLEAVED_ZERO_BUBBLE},
        {"blocks": (ends, alone, alone)},
        {"blocks": (ends, ends, alone)},
        {"shard": Shard.NONE},
        {"dp_shard": 1},
        {"pp": 1},
        {"dtensors": False},
    ):
        assert "PS719" not in piped(**(bent | sharded | other))


def test_weight_of_the_middle_is_sharded_twice() -> None:
    table = Parameters(trainable=8, split=Split.VOCABULARY, tie_group="table")
    tied, alone = (block(parameters=(own,), unit=False) for own in (table, replace(table, tie_group=None)))
    looped = {"pp_schedule": PipelineSchedule.INTERLEAVED, "virtual_stages": 2}
    sharded = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    for blocks in ((tied, alone, tied, alone), (alone, tied, alone, tied)):
        assert "PS720" in piped(**looped, **sharded, blocks=blocks)
    for other in (
        {"pp_schedule": PipelineSchedule.DUAL_PIPE_V},
        {"pp_schedule": PipelineSchedule.ONE_F_ONE_B, "virtual_stages": 1},
        {"blocks": (tied, alone, alone, tied)},
        {"blocks": (alone, tied, tied, alone)},
        {"shard": Shard.NONE},
        {"dp_shard": 1},
        {"pp": 1},
        {"dtensors": False},
    ):
        assert "PS720" not in piped(**{**looped, **sharded, "blocks": (tied, alone, tied, alone), **other})
