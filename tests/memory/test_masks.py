"""Attention masks on the stages of a pipeline, of blocks of a few bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import block, job, matmul, plan

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.model import Block
from parastrat.plan import PipelineSchedule, Recompute, Shard
from parastrat.saved import Saved
from parastrat.stack import Crossing
from parastrat.workload import Optimizer, Precision

GPIPE, SINGLE = PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B
INTERLEAVED = PipelineSchedule.INTERLEAVED
SHARED, OF_SAMPLES = Saved(fixed=1000), Saved(replicated=1000)


def facts(masks: Saved, *others: Block) -> Facts:
    # the embedding's own are counted as what it keeps
    found = job(
        block(name="embedding", unit=False, masks=masks),
        block(matmul(1e9), repeat=4),
        *others,
        optimizer=Optimizer.SGD,
        precision=Precision.FP32,
        stack={"fragmentation": 0.0, "context_bytes": 0},
    )
    return replace(found, stack=replace(found.stack, crossing=Crossing.NOTHING))


def kept(masks: Saved, *others: Block, **fields: Any) -> int:
    """Return the bytes of masks in a pipeline of eight micro-batches."""
    given = {"pp": 2, "gradient_accumulation_steps": 8, "pp_schedule": GPIPE} | fields
    return assess(facts(masks, *others), plan(**given)).estimate.memory.activations


def test_stages_keep_the_masks_of_all_micro_batches_in_flight() -> None:
    full: dict[str, Any] = {"recompute": Recompute.FULL}
    assert kept(SHARED, **full) == 8 * 1000
    # the second rank of two has one in flight, the second of four three
    assert kept(SHARED, pp_schedule=SINGLE, **full) == 1000
    assert kept(SHARED, pp=4, pp_schedule=SINGLE, **full) == 3 * 1000
    # the second has three chunks in flight, and of the first one's five two or three lack the embedding
    assert kept(SHARED, pp_schedule=INTERLEAVED, virtual_stages=2, **full) == 3 * 1000
    assert kept(SHARED, pp=1, pp_schedule=None, **full) == 0


@pytest.mark.parametrize(
    ("policy", "shared", "of_samples"),
    [
        (Recompute.NONE, 0, 0),
        # products are not made again with attention alone
        (Recompute.ATTENTION, 1, 0),
        (Recompute.SELECTIVE, 1, 2),
        (Recompute.FULL, 1, 2),
    ],
)
def test_checkpoints_keep_masks(policy: Recompute, shared: int, of_samples: int) -> None:
    two: dict[str, Any] = {"recompute": policy, "micro_batch_size": 2}
    assert kept(SHARED, **two) == shared * 8 * 1000
    assert kept(OF_SAMPLES, **two) == of_samples * 8 * 1000


def test_a_stage_without_layers_keeps_none() -> None:
    head = block(matmul(1e12), name="head", unit=False, working=Saved(replicated=10**6))
    # which is most on the last rank, where nothing else is
    assert kept(SHARED, head, recompute=Recompute.FULL) == 0


def test_ranks_of_a_sequence_put_their_rows_together_for_every_sample() -> None:
    shared: dict[str, Any] = {"recompute": Recompute.FULL, "shard": Shard.PARAMETERS, "cp": 2}
    # of four samples half the rows of each, in all micro-batches of the second stage and of the first
    assert kept(SHARED, micro_batch_size=4, **shared) == 8 * 2 * 1000
    alone: dict[str, Any] = {"pp": 1, "pp_schedule": None, "gradient_accumulation_steps": 1}
    assert kept(SHARED, micro_batch_size=8, **shared, **alone) == 3 * 1000
    assert kept(SHARED, micro_batch_size=8, **alone, recompute=Recompute.FULL) == 0
