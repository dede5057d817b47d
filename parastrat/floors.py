"""What a plan needs at least, before its recompute and resharding are chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.activations import SAVED_BY, in_flight, least_kept_bytes, running_bytes
from parastrat.columns import code_of
from parastrat.distinct import distinct
from parastrat.gathered import HELD_BY, gathered_bytes
from parastrat.plan import Shard
from parastrat.ranks import block_kinds, first_ranks, rank_columns
from parastrat.states import (
    context_bytes,
    element_bytes,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.units import Bytes


def memory_floor(facts: Facts, columns: Columns) -> Bytes:
    """Return what every plan of a row needs at least, whatever recompute and resharding it has.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the first rank's peak while its largest blocks run backward, with the least that a policy keeps and the
    lesser of the gathered parameters. To keep less never costs memory: what one repeat computes again
    exists once, what it would have kept is held once or more.
    """
    sizes = [block.activations.none.total for block in facts.model.blocks]
    largest = sizes.index(max(sizes))
    share = 1 + facts.stack.fragmentation
    stepping, running, held_at = _held(facts, columns, largest, share)
    saved, saved_at = distinct(columns, tuple(name for name in SAVED_BY if name != "recompute"))
    first = first_ranks(facts.model, saved)
    one_batch, at = distinct(saved, ("micro_batch_size", "cp", "tp", "sequence_parallel"))
    blocks, kinds = facts.model.blocks, block_kinds(facts.model)
    own = list(dict.fromkeys(kinds))
    least = least_kept_bytes([blocks[kind] for kind in own], one_batch)

    def kept_from(place: int) -> Any:
        """Return what the first rank keeps of the blocks from one on."""
        counts = [
            sum(first.repeats[other] for other in range(place, len(kinds)) if kinds[other] == kind)
            for kind in own
        ]
        return sum(each[at] * count for each, count in zip(least, counts, strict=True))

    biggest = own.index(kinds[largest])
    (running_once,) = running_bytes([blocks[largest]], least[biggest : biggest + 1], one_batch)
    one, beside = share * kept_from(0), share * (running_once[at] - kept_from(largest + 1))
    held = in_flight(columns, 0) * one[saved_at]
    return context_bytes(facts) + np.maximum(stepping[held_at], running[held_at] + held + beside[saved_at])


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
    gathered = np.minimum(
        *(
            # what is searched keeps a pipeline's units gathered
            gathered_bytes(
                model,
                first,
                held.joined({"reshard_after_forward": reshard & (held.pp == 1)}),
                element,
                largest,
            )
            for reshard in (True, False)
        )
    )
    # gradients that a pipeline or the loss leaves unreduced are counted among the gathered
    later: Any = sum(first.repeats[largest + 1 :], np.zeros(len(held.pp)))
    reduced = (held.shard != code_of(Shard.PARAMETERS)) | ((held.pp == 1) & (later > 0))
    running = states["parameters"] + states["optimizer"] + reduced * states["gradients"] + share * gathered
    return stepping.max(axis=0), np.where(first.repeats[largest] > 0, running, -np.inf), held_at
