"""What a plan needs at least, before its recompute and resharding are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.activations import SAVED_BY, in_flight, least_kept_bytes, running_bytes
from parastrat.columns import code_of
from parastrat.distinct import distinct
from parastrat.gathered import HELD_BY, gathered_bytes
from parastrat.plan import Shard
from parastrat.ranks import block_kinds, first_ranks, rank_columns, rank_moments
from parastrat.states import (
    context_bytes,
    element_bytes,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import Block, ModelSpec
    from parastrat.moments import Moment
    from parastrat.units import Bytes


def memory_floor(facts: Facts, columns: Columns) -> Bytes:
    """Return what every plan of a row needs at least, whatever recompute and resharding it has.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the first rank's peak while its largest blocks run backward, with the least that a policy keeps and the
    lesser of the gathered parameters. To keep less never costs memory: what one repeat computes again
    exists once, what it would have kept is held once or more.
    """
    blocks = block_kinds(facts.model).blocks
    share = 1 + facts.stack.fragmentation
    saved, saved_at = distinct(columns, tuple(name for name in SAVED_BY if name != "recompute"))
    first = first_ranks(facts.model, saved)
    one_batch, at = distinct(saved, ("micro_batch_size", "cp", "tp", "sequence_parallel"))
    least = least_kept_bytes(blocks, one_batch)
    largest = _largest(blocks)
    moment, pipelines_at = _moment_of(facts.model, largest, saved)
    (running_once,) = running_bytes([blocks[largest]], least[largest : largest + 1], one_batch)

    def kept_of(counts: Sequence[Any]) -> Any:
        return sum(each[at] * count for each, count in zip(least, counts, strict=True))

    beside = share * (running_once[at] - kept_of(moment.freed[:, 0].take(pipelines_at, axis=-1)))
    held = in_flight(columns, 0) * (share * kept_of(first.repeats))[saved_at]
    stepping, running, held_at = _held(facts, columns, largest, share)
    return context_bytes(facts) + np.maximum(stepping[held_at], running[held_at] + held + beside[saved_at])


def _largest(blocks: Sequence[Block]) -> int:
    """Return the kind of block of which one repeat has the most activations."""
    sizes = [block.activations.none.total for block in blocks]
    return sizes.index(max(sizes))


def _moment_of(model: ModelSpec, kind: int, columns: Columns) -> tuple[Moment, Any]:
    """Return when a kind of block starts backward, and which of the pipelines each row has."""
    moments, at = rank_moments(model, columns)
    return next(moment for moment in moments if moment.kind == kind), at


def _held(facts: Facts, columns: Columns, largest: int, share: float) -> tuple[Any, Any, Any]:
    """Return what does not hang on activations: in the optimizer step, and while the largest block runs.

    The second is that of the first rank, and below 0 where it has no such block.
    """
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, tuple(name for name in HELD_BY if name != "reshard_after_forward"))
    ranks = rank_columns(model, held)
    stepping: Any = sum(state_bytes(ranks, held, element).values()) + stepping_bytes(ranks, held, element)
    first = first_ranks(model, held)
    states = state_bytes(first, held, element)
    of_ranks, at = _moment_of(model, largest, held)
    moment = of_ranks.of_rank(0).at(at)
    gathered = np.minimum(
        *(
            # what is searched keeps a pipeline's units gathered
            gathered_bytes(
                block_kinds(model).blocks,
                first,
                held.joined({"reshard_after_forward": reshard & (held.pp == 1)}),
                element,
                moment,
            )
            for reshard in (True, False)
        )
    )
    # gradients that a pipeline or the loss leaves unreduced are counted among the gathered
    reduced = (held.shard != code_of(Shard.PARAMETERS)) | ((held.pp == 1) & ~moment.first)
    running = states["parameters"] + states["optimizer"] + reduced * states["gradients"] + share * gathered
    return stepping.max(axis=0), np.where(moment.present, running, -np.inf), held_at
