"""What pipelines hold of micro-batches in flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from parastrat.elementwise import smaller, where

if TYPE_CHECKING:
    from parastrat.memory.alike import Alike
    from parastrat.units import Numbers


class Pipes(Protocol):
    """What of plans tells how their pipelines run."""

    @property
    def pp(self) -> Numbers: ...

    @property
    def virtual_stages(self) -> Numbers: ...

    @property
    def gradient_accumulation_steps(self) -> Numbers: ...


def in_flight(alike: Alike, c: Pipes, rank: Numbers) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak, in its stages' mean.

    GPipe and LoopedBFS hold all; 1F1B as many as there are ranks behind; interleaved chunks as in
    Megatron-LM's schedule; without bubbles a rank runs ahead by one chunk for each rank behind it, and
    weights' gradients wait for as many as its place, so that all ranks hold as many as there are
    (torch/distributed/pipelining/schedules.py, ``ScheduleInterleavedZeroBubble``); the V schedules about as
    many as well.
    """
    if alike.piped is False:
        return 1
    steps, behind = c.gradient_accumulation_steps, c.pp - rank
    if alike.as_behind is True:
        return smaller(behind, steps)
    held = steps
    if alike.as_behind is not False:
        held = where(alike.as_behind, behind, held)
    if alike.as_chunks is not False:
        chunks = 2 * (behind - 1) + (c.virtual_stages - 1) * c.pp + 1
        held = where(alike.as_chunks, chunks / c.virtual_stages, held)
    if alike.as_ranks is not False:
        held = where(alike.as_ranks, c.pp, held)
    return where(alike.piped, smaller(held, steps), 1)


def way_of_turns(alike: Alike, c: Pipes) -> Any:
    """Return the place of each plan's way among ``ranks.flights.WAYS``."""
    return where(c.gradient_accumulation_steps <= c.pp, 2, 0) + alike.splits
