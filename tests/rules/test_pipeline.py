from __future__ import annotations

import pytest
from builders import case, codes, model

from parastrat.finding import Severity
from parastrat.model import Parameters
from parastrat.plan import PipelineSchedule, Shard
from parastrat.rules.pipeline import (
    ddp_under_chunks,
    gathers_for_every_micro_batch,
    stages_are_uneven,
    tied_weights_on_two_stages,
)
from parastrat.workload import Optimizer

ONE = PipelineSchedule.ONE_F_ONE_B
INTERLEAVED = PipelineSchedule.INTERLEAVED


def piped(**changes: object) -> set[str]:
    """A good pipeline of four stages, but for what a test changes."""
    return codes(**({"pp": 4, "pp_schedule": ONE, "gradient_accumulation_steps": 16} | changes))


def test_nothing_is_said_of_a_good_pipeline() -> None:
    assert piped(optimizer=Optimizer.SGD) == set()


def test_fewer_micro_batches_than_stages() -> None:
    assert "PS701" in piped(gradient_accumulation_steps=3)
    assert "PS701" not in piped(gradient_accumulation_steps=4)
    assert "PS701" not in piped(gradient_accumulation_steps=3, pp_schedule=PipelineSchedule.GPIPE)
    assert "PS701" not in piped(gradient_accumulation_steps=1, pp=1)
    v_shaped = {"pp_schedule": PipelineSchedule.DUAL_PIPE_V, "virtual_stages": 2}
    assert "PS701" in piped(gradient_accumulation_steps=7, **v_shaped)
    assert "PS701" not in piped(gradient_accumulation_steps=8, **v_shaped)


@pytest.mark.parametrize("schedule", [INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE])
def test_micro_batches_break_rounds(schedule: PipelineSchedule) -> None:
    # 9 micro-batches make two rounds over four ranks, 10 do too; fewer than four make one
    assert "PS702" in piped(pp_schedule=schedule, virtual_stages=2, gradient_accumulation_steps=9)
    assert "PS702" not in piped(pp_schedule=schedule, virtual_stages=2, gradient_accumulation_steps=10)
    assert "PS702" not in piped(pp_schedule=schedule, virtual_stages=2, gradient_accumulation_steps=3)
    assert "PS702" not in piped(pp_schedule=ONE, gradient_accumulation_steps=9)


def test_virtual_stages_without_pipeline() -> None:
    assert "PS703" in codes(virtual_stages=2)
    assert "PS703" not in piped(virtual_stages=2, pp_schedule=INTERLEAVED)
    assert "PS703" not in codes()


@pytest.mark.parametrize("schedule", [PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V])
def test_v_schedule_without_two_stages(schedule: PipelineSchedule) -> None:
    assert "PS704" in piped(pp_schedule=schedule)
    assert "PS704" not in piped(pp_schedule=schedule, virtual_stages=2)
    assert "PS704" not in piped(pp_schedule=INTERLEAVED, virtual_stages=4)


def test_bubble_is_large() -> None:
    # three of n + 3 slots: a fifth at twelve
    assert "PS705" in piped(gradient_accumulation_steps=11)
    assert "PS705" not in piped(gradient_accumulation_steps=12)
    assert "PS705" not in piped(gradient_accumulation_steps=8, virtual_stages=2, pp_schedule=INTERLEAVED)
    assert "PS705" not in piped(
        gradient_accumulation_steps=4, virtual_stages=2, pp_schedule=PipelineSchedule.ZBV
    )


def test_schedule_is_missing() -> None:
    assert "PS706" in piped(pp_schedule=None)
    assert "PS706" not in piped()
    assert "PS706" not in codes()


def test_schedule_without_pipeline() -> None:
    assert "PS707" in codes(pp_schedule=ONE)
    assert "PS707" in codes(pp_schedule=PipelineSchedule.GPIPE)
    assert "PS707" not in piped()
    assert "PS707" not in codes()


@pytest.mark.parametrize("schedule", [ONE, PipelineSchedule.GPIPE])
def test_single_stage_schedule_with_chunks(schedule: PipelineSchedule) -> None:
    assert "PS708" in piped(pp_schedule=schedule, virtual_stages=2)
    assert "PS708" not in piped(pp_schedule=schedule)
    assert "PS708" not in piped(pp_schedule=INTERLEAVED, virtual_stages=2)


@pytest.mark.parametrize("schedule", [INTERLEAVED, PipelineSchedule.LOOPED_BFS])
def test_interleaving_with_one_chunk(schedule: PipelineSchedule) -> None:
    assert "PS709" in piped(pp_schedule=schedule)
    assert "PS709" not in piped(pp_schedule=schedule, virtual_stages=2)
    assert "PS709" not in piped()


def test_more_stages_than_layers() -> None:
    assert "PS710" in piped(layers=3)
    assert "PS710" in piped(layers=7, virtual_stages=2, pp_schedule=INTERLEAVED)
    assert "PS710" not in piped(layers=4)
    assert "PS710" not in piped(layers=0, pp=1)


def test_stages_are_uneven() -> None:
    assert "PS711" in piped(layers=9)
    assert "PS711" not in piped(layers=8)
    assert "PS711" not in piped(layers=3)
    # of virtual stages without a pipeline PS703 says what is wrong
    assert {"PS703", "PS711"} & codes(virtual_stages=3) == {"PS703"}


def test_llama_405b_is_cut_as_published() -> None:
    assert "PS711" not in piped(pp=16, layers=126)
    assert "PS711" in piped(pp=16, layers=124)
    hit = stages_are_uneven.hit(case(pp=16, layers=124))
    assert hit.message.startswith(
        "124 layers on 16 stages: the fullest has 8, the average 7.8, so up to 3 %"
    )


def uneven(**changes: object) -> str:
    """What PS711 proposes for a pipeline whose stages are uneven."""
    made = {"pp": 16, "pp_schedule": ONE, "gradient_accumulation_steps": 64} | changes
    assert "PS711" in codes(**made)
    return stages_are_uneven.hit(case(**made)).fix or ""


def test_even_stages_are_those_of_a_pp_that_the_ranks_have() -> None:
    # 124 = 4 x 31, and 126 = 124 + 2 has no further power of two; 62 stages divide 124, but not 16 ranks
    assert uneven(layers=124) == "use pp 4 or pp 2, whose stages are even, or write the layout out"
    assert uneven(layers=33, pp=4, dp_shard=3, gradient_accumulation_steps=24).startswith("use pp 3,")
    assert uneven(layers=29, pp=4, tp=2).startswith("write the layout out: no other pp")


def test_even_stages_leave_the_batch_and_the_expert_groups_whole() -> None:
    assert uneven(layers=26, pp=8, gradient_accumulation_steps=8).startswith("use pp 4 or pp 2,")
    assert uneven(layers=26, pp=8, gradient_accumulation_steps=9).startswith("write the layout out")
    # pp 3 leaves four ranks, over which six do not group
    experts = {"pp": 2, "dp_shard": 6, "layers": 33, "gradient_accumulation_steps": 24, "experts": 12}
    assert uneven(**experts, ep=2).startswith("use pp 3,")
    assert uneven(**experts, ep=6).startswith("write the layout out")


def test_even_stages_are_as_many_a_rank_as_the_schedule_takes() -> None:
    chunks = {"virtual_stages": 2, "pp": 4}
    interleaved = uneven(layers=60, pp_schedule=INTERLEAVED, **chunks)
    assert interleaved.startswith("use pp 4 x virtual_stages 3 or pp 4 x virtual_stages 5,")
    v_shaped = uneven(layers=60, pp_schedule=PipelineSchedule.ZBV, **chunks)
    assert v_shaped.startswith("use pp 2, whose stages are even")


def test_gathers_for_every_micro_batch() -> None:
    sharded = {"shard": Shard.PARAMETERS, "dp_shard": 2}
    assert "PS712" in piped(**sharded)
    assert "PS712" not in piped(**sharded, reshard_after_forward=False)
    assert "PS712" not in codes(**sharded)
    assert "PS712" not in piped(dp_replicate=2)
    assert "PS712" not in piped(shard=Shard.GRADIENTS, dp_shard=2)
    assert "PS712" not in piped(shard=Shard.PARAMETERS, dp_replicate=2)
    hit = gathers_for_every_micro_batch.hit(case(pp=2, **sharded, gradient_accumulation_steps=4))
    assert hit.message == "every block is gathered 5 times a step, for 4 micro-batches"


def test_ddp_under_chunks() -> None:
    chunks = {"virtual_stages": 2, "pp_schedule": INTERLEAVED}
    assert "PS713" in piped(dp_replicate=2, **chunks)
    assert "PS713" not in piped(dp_shard=2, shard=Shard.PARAMETERS, **chunks)
    assert "PS713" not in piped(dp_replicate=2)
    assert "PS713" not in piped(**chunks)
    assert "PS713" not in piped(dp_replicate=2, dtensors=False, **chunks)  # Megatron's own DDP takes them
    # whoever runs the plan by parastrat has nothing to change of it
    assert ddp_under_chunks.severity is Severity.INFO
    hit = ddp_under_chunks.hit(case(pp=2, dp_replicate=2, **chunks))
    assert "auto_parallelize averages their gradients" in hit.message
    assert "virtual_stages" not in hit.fix


def test_tied_weights_on_two_stages() -> None:
    (block,) = model().blocks
    tied = Parameters(trainable=10, tie_group="embedding")
    ends = tuple(
        type(block)(**{name: getattr(block, name) for name in block.__slots__} | {"parameters": (tied,)})
        for _ in range(2)
    )
    assert "PS714" in piped(blocks=(ends[0], block, ends[1]))
    # whoever runs the plan by parastrat has nothing to do
    hit = tied_weights_on_two_stages.hit(case(pp=4, blocks=(ends[0], block, ends[1])))
    assert hit is not None
    assert "as auto_parallelize and Megatron do" in (hit.fix or "")
    assert "PS714" not in piped(blocks=(ends[0], block))
    assert "PS714" not in codes(blocks=(ends[0], block, ends[1]))
