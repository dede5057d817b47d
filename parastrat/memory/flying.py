"""What pipelines hold of micro-batches in flight, and of those that wait for the gradients of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.memory.activations import (
    activation_table,
    autocasts,
    saved_bytes,
    under,
)
from parastrat.plan import PipelineSchedule
from parastrat.ranks import block_kinds
from parastrat.schedules import V_SHAPED, splits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.units import Bytes, Numbers


def in_flight(c: Columns, rank: Numbers) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak.

    GPipe and LoopedBFS hold all; 1F1B as many as there are ranks behind; interleaved chunks as in
    Megatron-LM's schedule; without bubbles a rank runs ahead by one chunk for each rank behind it, and
    weights' gradients wait for as many as its place, so that all ranks hold as many as there are
    (torch/distributed/pipelining/schedules.py, ``ScheduleInterleavedZeroBubble``); the V schedules about as
    many as well.
    """
    steps, behind = c.gradient_accumulation_steps, c.pp - rank
    chunks = 2 * (behind - 1) + (c.virtual_stages - 1) * c.pp + 1
    ways: dict[tuple[PipelineSchedule, ...], Callable[[], Numbers]] = {
        (PipelineSchedule.ONE_F_ONE_B,): lambda: behind,
        (PipelineSchedule.INTERLEAVED,): lambda: chunks / c.virtual_stages,
        (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, *V_SHAPED): lambda: c.pp,
    }
    held = steps
    for names, count in ways.items():
        chosen = is_any_of(c.pp_schedule, names)
        if chosen.any():
            held = np.where(chosen, np.minimum(count(), steps), held)
    return np.where(c.pp > 1, held, 1)


def held_bytes(c: Columns, flying: Numbers, one: Bytes, head: Bytes) -> Bytes:
    """Return the activations of micro-batches in flight.

    Args:
        c: the plans.
        flying: micro-batches in flight, in the mean of a rank's chunks.
        one: what all blocks of a rank keep of one.
        head: of that the head, whose interleaved or bent chunk is the last to run forward and the first
            backward.
    """
    once = is_any_of(c.pp_schedule, (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZBV)) & (c.pp > 1)
    if not once.any():
        return flying * one
    return flying * one - np.where(once, np.maximum(flying - 1, 0) * head, 0.0)


def awaited_bytes(
    facts: Facts, c: Columns, again: Bytes, repeats: Sequence[Numbers]
) -> tuple[Bytes, Bytes]:
    """Return what a split backward leaves to that of the weights: of a chunk, and of the one that runs.

    Gradients of products, and what was made again for them, of all blocks of the chunk: each of a rank's
    virtual stages has its share of them. The running block's own are among what runs.

    Args:
        facts: the job.
        c: the plans.
        again: of each kind of block what is made again.
        repeats: of each kind of block on each rank.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    chosen = under(table.awaited, autocasts(c).astype(np.int64))
    one = saved_bytes(chosen, c, facts) + again
    several = np.where(table.of_loss > 0, 1, c.virtual_stages)
    counts = [count / own for count, own in zip(repeats, several, strict=True)]
    chunk = sum(each * count for each, count in zip(one, counts, strict=True))
    running = sum(each * np.maximum(count - 1, 0) for each, count in zip(one, counts, strict=True))
    return chunk, running


def waiting_bytes(c: Columns, rank: Numbers, chunk: Bytes, running: Bytes) -> Bytes:
    """Return what waits for the gradients of weights, of chunks and of the one that runs backward.

    Args:
        c: the plans.
        rank: the place in the pipeline, behind which so many chunks wait.
        chunk: what ``awaited_bytes`` returns.
        running: of it the other.
    """
    # of equal ranks, none of which is an end, the first is told; of them the last waits for most
    last = np.where((rank > 0) & (rank < c.pp - 1), c.pp - 2, rank)
    behind = np.where(c.pp_schedule == code_of(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE), last, 0)
    return splits(c) * (behind * chunk + running)
