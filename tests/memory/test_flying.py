"""What pipelines hold where backward is split in two, of blocks of a few bytes, and what experts take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import block, flying, job, matmul, plan, row

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.memory.alone import plan_alone
from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.held import ranks_read
from parastrat.memory.plans import job_of
from parastrat.model import Parameters, Split
from parastrat.plan import PipelineSchedule, Plan, Recompute, Shard
from parastrat.ranks import ParameterTotals
from parastrat.ranks.division import division, local
from parastrat.ranks.totals import cast_totals
from parastrat.saved import Activations, Saved
from parastrat.stack import Crossing
from parastrat.workload import Optimizer, Precision

SPLIT = PipelineSchedule.INTERLEAVED_ZERO_BUBBLE
PIPED: dict[str, Any] = {"pp": 2, "virtual_stages": 2, "gradient_accumulation_steps": 8}


def layers(many: int, *, awaited: float, full: float = 100, **fields: Any) -> Facts:
    kept, checkpoint = Saved(replicated=100), Saved(replicated=full)
    each = block(
        matmul(1e9),
        repeat=many,
        activations=Activations(none=kept, attention=kept, selective=kept, full=checkpoint),
        awaited=Saved(replicated=awaited),
        boundary_bytes=7,
        **fields,
    )
    facts = job(
        # without which ranks were equal
        block(name="embedding", unit=False),
        each,
        optimizer=Optimizer.SGD,
        precision=Precision.FP32,
        stack={"fragmentation": 0.0, "context_bytes": 0, "step_constant_s": 1.0},
    )
    return replace(facts, stack=replace(facts.stack, crossing=Crossing.NOTHING))


def total(facts: Facts, schedule: PipelineSchedule, **fields: Any) -> int:
    return assess(facts, plan(pp_schedule=schedule, **PIPED, **fields)).estimate.memory.total


def test_the_last_rank_waits_for_a_chunk_of_weights() -> None:
    # rank 1, behind which none is: one chunk of one layer, and the one that runs
    assert total(layers(4, awaited=30), SPLIT) - total(layers(4, awaited=0), SPLIT) == 2 * 30
    assert total(layers(8, awaited=30), SPLIT) - total(layers(8, awaited=0), SPLIT) == 4 * 30
    # of ZBV the one that runs alone
    zbv = PipelineSchedule.ZBV
    assert total(layers(4, awaited=30), zbv) - total(layers(4, awaited=0), zbv) == 30
    # no schedule with a whole backward lets any wait
    whole = PipelineSchedule.INTERLEAVED
    assert total(layers(4, awaited=30), whole) == total(layers(4, awaited=0), whole)


def test_what_is_not_freed_is_there_beside_what_its_backward_makes() -> None:
    def more(schedule: PipelineSchedule) -> int:
        held = (total(layers(4, awaited=0, retained=Saved(replicated=each)), schedule) for each in (500, 0))
        return next(held) - next(held)

    assert more(SPLIT) == more(PipelineSchedule.ZBV) == 500
    # a whole backward frees as it goes
    assert more(PipelineSchedule.INTERLEAVED) == 0


def test_what_is_made_again_waits_too() -> None:
    kept = total(layers(8, awaited=0), SPLIT)
    again = total(layers(8, awaited=0, full=10), SPLIT, recompute=Recompute.FULL)
    # of two micro-batches in flight, each of four layers, a chunk waits and another runs
    assert kept - again == 2 * 4 * 90 - 2 * 90 - 2 * 90


def crossing(facts: Facts, chosen: Plan, rank: int) -> tuple[float, float]:
    """Return the buffers of a rank, and what it holds of what it sent of two micro-batches."""
    plans = plan_alone(job_of(facts), chosen)
    return crossing_bytes(facts.stack.crossing, ranks_read(plans, None), rank, 2)


@pytest.mark.parametrize("rank", [0, 1])
def test_all_ranks_hold_as_many_without_bubbles(rank: int) -> None:
    assert flying(row(pp_schedule=SPLIT, **PIPED), rank) == 2


@pytest.mark.parametrize("pp", [2, 8])
def test_weights_wait_for_as_many_chunks_as_ranks_are_before(pp: int) -> None:
    piped = PIPED | {"pp": pp, "gradient_accumulation_steps": 2 * pp}

    def waiting(schedule: PipelineSchedule) -> int:
        totals = [
            assess(
                layers(4 * pp, awaited=awaited), plan(pp_schedule=schedule, **piped)
            ).estimate.memory.total
            for awaited in (30, 0)
        ]
        return totals[0] - totals[1]

    # chunks of two layers, and the one that runs
    assert waiting(SPLIT) == pp * 2 * 30
    # down and up, where the last rank then has a chunk of activations less than others at their most
    most, on_last = 2 * 30, (2 * (pp - 1) * 2 + 2) * 30 - 2 * 100
    assert waiting(PipelineSchedule.ZBV) == max(most, on_last)
    assert waiting(PipelineSchedule.INTERLEAVED) == 0


def test_a_split_backward_leaves_gradients_in_what_was_received() -> None:
    facts = layers(4, awaited=0)
    facts = replace(facts, stack=replace(facts.stack, crossing=Crossing.BUFFERS))

    def buffers(schedule: PipelineSchedule, rank: int) -> float:
        return crossing(facts, plan(pp_schedule=schedule, **PIPED), rank)[0]

    # of all micro-batches but two in flight; the first rank receives in one of its stages, the last in both
    for rank, receiving in ((0, 1), (1, 2)):
        more = buffers(SPLIT, rank) - buffers(PipelineSchedule.INTERLEAVED, rank)
        assert more == receiving * (8 - 2) * 7
    # on the rank where a chain turns, what one stage leaves is the buffer of the other
    assert buffers(PipelineSchedule.ZBV, 1) == (2 + 2 - 1) * 8 * 7 + 2 * (8 - 2) * 7


def test_stages_may_hand_on_what_sequence_parallelism_divides() -> None:
    def held(*, divided: bool, **fields: Any) -> tuple[float, float]:
        facts = layers(4, awaited=0)
        stack = replace(facts.stack, crossing=Crossing.BUFFERS, crosses_divided=divided)
        facts = replace(facts, stack=stack)
        pipeline = {"pp_schedule": PipelineSchedule.ONE_F_ONE_B, **PIPED, "virtual_stages": 1, **fields}
        return crossing(facts, plan(**pipeline), 0)

    sharing = {"tp": 2, "sequence_parallel": True}
    # the first rank of two has buffers of 7 for the gradients of eight micro-batches, and sent two
    assert held(divided=False, **sharing) == (8 * 7, 2 * 7)
    assert held(divided=True, **sharing) == (8 * 7 / 2, 2 * 7 / 2)
    assert held(divided=True, tp=2) == held(divided=False, tp=2) == (8 * 7, 2 * 7)


def test_what_a_block_copies_is_kept_beside_what_was_received() -> None:
    def sent(copies: bool | None, **fields: Any) -> float:
        facts = layers(4, awaited=0, full=5, copies_input=copies)
        facts = replace(facts, stack=replace(facts.stack, crossing=Crossing.BUFFERS))
        pipeline = {"pp_schedule": PipelineSchedule.ONE_F_ONE_B, **PIPED, "virtual_stages": 1, **fields}
        return crossing(facts, plan(**pipeline), 1)[1]

    # two micro-batches in flight, of which a checkpoint keeps 5 that are in a buffer
    sharded: dict[str, Any] = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    for copies in (True, False, None):
        assert sent(copies, recompute=Recompute.FULL) == -2 * 5
    assert (sent(True), sent(False), sent(None)) == (0, -2 * 5, -2 * 5)
    assert (sent(True, **sharded), sent(False, **sharded), sent(None, **sharded)) == (0, -2 * 5, 0)


def test_stacks_say_whether_tp_divides_experts() -> None:
    totals = ParameterTotals(replicated=5, tensor=40, expert=80)
    for divides, alone in ((True, 80 / 4), (False, 80)):
        columns = row(tp=4).joined({"divides_experts": divides})
        assert local(totals, columns) == (5 + 40 / 4, alone)
        assert division(columns).expert_tensor == (4 if divides else 1)
        # ep divides them in any case, and tp their tokens
        columns = row(tp=4, dp_shard=2, ep=8).joined({"divides_experts": divides})
        assert local(totals, columns)[1] == 80 / 8
        assert division(columns).expert_tensor == 4


def test_vocabularies_that_tp_does_not_divide_are_whole() -> None:
    totals = ParameterTotals(replicated=5, vocabulary=80)
    for vocab, pads, rank in ((12, False, 20), (13, False, 80), (13, True, 20)):
        columns = row(tp=4).joined({"vocab": vocab, "pads_vocabulary": pads})
        assert local(totals, columns)[0] == 5 + rank


def test_what_tp_ranks_gather_of_weights_is_there_as_often_as_it_is_told() -> None:
    def most(regathered: int, tp: int, **fields: int) -> int:
        facts = job(
            block(matmul(1e9), regathered=regathered, stretched=1000, **fields),
            precision=Precision.FP32,
            stack={"fragmentation": 0.0},
        )
        return assess(facts, plan(tp=tp)).estimate.memory.total

    assert most(2000, 2) - most(0, 2) == 2 * 4 * 1000
    assert most(2000, 1) == most(0, 1)
    # less the shares whose places it takes
    assert most(2000, 2, unshared=1000) - most(0, 2) == 4 * 1500


def test_a_ranks_stretches_of_a_gathered_weight_are_kept_where_that_is_sharded() -> None:
    def kept(**fields: Any) -> int:
        facts = job(
            block(matmul(1e9), stretched=1000, repeat=3),
            precision=Precision.FP32,
            stack={"fragmentation": 0.0},
        )
        return assess(facts, plan(**fields)).estimate.memory.activations

    sharded: dict[str, Any] = {"dp_shard": 2, "shard": Shard.PARAMETERS}
    assert kept(tp=4, **sharded) == 3 * 4 * 1000 // 4
    # made again with a block, and not there where they are what is stored
    assert kept(tp=4, recompute=Recompute.FULL, **sharded) == 0
    assert kept(tp=4) == kept(**sharded) == 0


def test_what_attention_kept_is_gone_as_a_gathered_weights_gradient_is_put_together() -> None:
    def most(behind: float) -> int:
        facts = job(
            block(matmul(1e9), stretched=1000, regathered=2000, behind_regathered=Saved(tensor=behind)),
            precision=Precision.FP32,
            stack={"fragmentation": 0.0},
        )
        return assess(facts, plan(tp=2)).estimate.memory.total

    assert most(0) - most(1000) == 1000 // 2
    # never less than as attention runs
    assert most(10**6) == most(10**7)


def test_casts_leave_out_what_grouped_products_read() -> None:
    experts = Parameters(trainable=1000, split=Split.EXPERT, cast=False)
    assert cast_totals(block(parameters=(experts, Parameters(trainable=7)))) == ParameterTotals(
        replicated=7
    )
