"""What pipelines hold of micro-batches in flight, and of those that wait for the gradients of weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
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

_TAKING_TURNS = (
    PipelineSchedule.INTERLEAVED,
    PipelineSchedule.INTERLEAVED_ZERO_BUBBLE,
    *sorted(V_SHAPED),
)


def in_flight(c: Columns, rank: Numbers) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak, in its stages' mean.

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


def takes_turns(c: Columns) -> Any:
    """Return where a rank's virtual stages have each a number in flight of its own."""
    return is_any_of(c.pp_schedule, _TAKING_TURNS) & (c.pp > 1) & (c.virtual_stages > 1)


def few_steps(c: Columns) -> Any:
    """Return the micro-batches of a step that are too few for virtual stages to have their most in flight.

    0 where there are more, or none take turns.
    """
    steps = c.gradient_accumulation_steps
    return np.where(takes_turns(c) & (steps < 2 * c.pp), steps, 0)


def ways_of_turns(c: Columns) -> Any:
    """Return the place of each plan's way among ``ranks.flights.WAYS``, by its ``few_steps``."""
    few = (c.few_steps > 0) & (c.few_steps <= c.pp)
    return splits(c).astype(np.int64) + 2 * few


def awaited_bytes(facts: Facts, c: Columns, again: Bytes) -> Bytes:
    """Return of each kind of block what a split backward leaves to that of the weights.

    Gradients of products, and what was made again for them.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    return saved_bytes(under(table.awaited, autocasts(c).astype(np.int64)), c, facts) + again


def of_kinds(each: Bytes, counts: Sequence[Any]) -> Bytes:
    """Return the bytes of so many blocks of each kind, of which ranks have theirs before plans."""
    found = np.zeros(np.broadcast_shapes(np.shape(each[0]), np.shape(counts[0])))
    for own, count in zip(each, counts, strict=True):
        if np.any(count):
            found += own * count
    return found
