"""What a plan needs at least, before its resharding is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.activations import SAVED_BY, in_flight, kept_bytes, running_bytes
from parastrat.columns import code_of
from parastrat.distinct import distinct
from parastrat.gathered import HELD_BY, gathered_bytes
from parastrat.plan import Shard
from parastrat.ranks import block_kinds, ranks_of
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
    from parastrat.model import Block
    from parastrat.moments import Moment
    from parastrat.plan import Recompute
    from parastrat.ranks import Ranks
    from parastrat.units import Bytes


def memory_floor(facts: Facts, columns: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what the plans of a row need at least under each policy, whatever resharding they have.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the first rank's peak while its largest blocks run backward, with the lesser of the gathered parameters.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    blocks = block_kinds(facts.model).blocks
    share, largest = 1 + facts.stack.fragmentation, _largest(blocks)
    stepping, running, held_at = _held(facts, columns, largest, share)
    saved, saved_at = distinct(columns, tuple(name for name in SAVED_BY if name != "recompute"))
    ranks = ranks_of(facts.model, saved)
    one_batch, at = distinct(saved, ("micro_batch_size", "cp", "tp", "sequence_parallel"))
    repeats, freed = ranks.first.repeats, _moment(ranks, largest).freed[:, 0].take(ranks.at, axis=-1)
    stepping, running, held = stepping[held_at], running[held_at], in_flight(columns, 0)
    floors = np.empty((len(policies), len(held)))
    for floor, policy in zip(floors, policies, strict=True):
        kept = kept_bytes(blocks, one_batch.joined({"recompute": code_of(policy)}))
        (once,) = running_bytes([blocks[largest]], kept[largest : largest + 1], one_batch)
        beside = once[at] - _of_blocks(kept, freed, at)
        backward = held * (share * _of_blocks(kept, repeats, at))[saved_at] + (share * beside)[saved_at]
        np.maximum(stepping, running + backward, out=floor)
    return floors + context_bytes(facts)


def _of_blocks(kept: Any, counts: Sequence[Any], at: Any) -> Any:
    """Return what so many blocks of each kind keep."""
    return sum(each[at] * count for each, count in zip(kept, counts, strict=True))


def _largest(blocks: Sequence[Block]) -> int:
    """Return the kind of block of which one repeat has the most activations."""
    sizes = [block.activations.none.total for block in blocks]
    return sizes.index(max(sizes))


def _moment(ranks: Ranks, kind: int) -> Moment:
    """Return when a kind of block starts backward."""
    return next(moment for moment in ranks.moments if moment.kind == kind)


def _held(facts: Facts, columns: Columns, largest: int, share: float) -> tuple[Any, Any, Any]:
    """Return what does not hang on activations: in the optimizer step, and while the largest block runs.

    The second is that of the first rank, and below 0 where it has no such block.
    """
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, tuple(name for name in HELD_BY if name != "reshard_after_forward"))
    ranks = ranks_of(model, held)
    every, first = ranks.every, ranks.first
    stepping: Any = sum(state_bytes(every, held, element).values()) + stepping_bytes(every, held, element)
    states = state_bytes(first, held, element)
    moment = _moment(ranks, largest).of_rank(0).at(ranks.at)
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
