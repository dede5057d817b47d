"""What a plan needs at least, before its resharding is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.distinct import distinct
from parastrat.memory.activations import SAVED_BY, everything_bytes, in_flight, kept_bytes, running_bytes
from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.gathered import (
    HELD_BY,
    When,
    gathered_bytes,
    gathers,
    reducing_bytes,
    shards_parameters,
)
from parastrat.memory.pools import gathering_pool, pooled
from parastrat.memory.unmade import unmade_bytes
from parastrat.ranks import block_kinds, mean_ranks, ranks_of
from parastrat.ranks.states import (
    context_bytes,
    element_bytes,
    local,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Recompute
    from parastrat.units import Bytes


def memory_floor(facts: Facts, columns: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what the plans of a row need at least under each policy, whatever resharding they have.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the first rank's peak in backward, with the lesser of the gathered parameters; either beside what the
    allocator holds for gathering.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    blocks, share = block_kinds(facts.model).blocks, 1 + facts.stack.fragmentation
    stepping, gathered, held_at = _held(facts, columns, share)
    saved, saved_at = distinct(columns, tuple(name for name in SAVED_BY if name != "recompute"))
    ranks = ranks_of(facts.model, saved)
    one_batch, at = distinct(
        saved, ("micro_batch_size", "cp", "tp", "ep", "sequence_parallel", "loss_parallel", "shard", "pp")
    )
    repeats, in_full = ranks.first.repeats, in_flight(columns, 0)
    moments = ranks.moments.ranks(1).at(ranks.at)
    codes, places = [code_of(policy) for policy in policies], np.arange(len(one_batch.pp))
    each = one_batch.at(np.tile(places, len(codes))).joined({"recompute": np.repeat(codes, len(places))})
    kept = kept_bytes(facts, each)
    # policies before the rows of all that follows
    shape = len(blocks), len(codes), len(places)
    running = running_bytes(facts, kept, everything_bytes(facts, kept, each), each)
    kept, running = kept.reshape(shape), running.reshape(shape)
    peak = np.full((len(codes), len(in_full)), -np.inf)
    for kind, freed, beside in zip(moments.kinds, moments.freed[:, :, 0], gathered, strict=True):
        passing = share * (running[kind].take(at, axis=1) - _of_blocks(kept, freed, at))
        np.maximum(peak, beside + passing.take(saved_at, axis=1), out=peak)
    peak += in_full * (share * _of_blocks(kept, repeats, at)).take(saved_at, axis=1)
    for policy, code in enumerate(codes):
        buffers, sent = crossing_bytes(facts, columns.joined({"recompute": code}), 0, in_full)
        peak[policy] += share * (buffers + sent)
    return np.maximum(stepping[held_at], peak) + context_bytes(facts)


def mesh_floor(facts: Facts, columns: Columns) -> Bytes:
    """Return what the plans of a mesh need at least, whatever their micro-batch, schedule and options.

    That is of the rank with the mean load what steps and, under a pipeline, what backward leaves gathered
    and unreduced: both are linear in what a rank holds, so that some rank needs as much.
    """
    element, load = element_bytes(facts), mean_ranks(facts.model, columns)
    states = state_bytes(load, columns, element)
    stepping = sum(states.values()) + stepping_bytes(load, columns, element)
    everything = sum(local(load.trainable, columns)) + sum(local(load.frozen, columns))
    gathered = (1 + facts.stack.fragmentation) * (element.compute + element.reduce) * everything
    piped = (columns.pp > 1) & shards_parameters(columns)
    kept = states["parameters"] + states["optimizer"] + pooled(facts) * states["gradients"]
    backward = np.where(piped, kept + gathered, 0.0)
    return np.maximum(stepping, backward) + context_bytes(facts)


def _of_blocks(kept: Any, counts: Sequence[Any], at: Any) -> Any:
    """Return what so many blocks of each kind keep."""
    held = ((each, count) for each, count in zip(kept, counts, strict=True) if count.any())
    return sum((each.take(at, axis=1) * count for each, count in held), np.zeros((kept.shape[1], len(at))))


def _held(facts: Facts, columns: Columns, share: float) -> tuple[Any, Any, Any]:
    """Return what does not hang on activations: in the optimizer step, and at each moment of backward.

    The former stands for the rows that differ in it, whose places are returned last. The others are those
    of every row's first rank, and below 0 where it has no such block.
    """
    model, element, kinds = facts.model, element_bytes(facts), block_kinds(facts.model)
    held, at = distinct(columns, tuple(name for name in HELD_BY if name != "reshard_after_forward"))
    ranks = ranks_of(model, held)
    every, first = ranks.every, ranks.first
    pool = gathering_pool(kinds, every, held, element) * pooled(facts)
    stepping = sum(state_bytes(every, held, element).values()) + stepping_bytes(every, held, element) + pool
    states = state_bytes(first, held, element)
    # what is searched keeps a pipeline's units gathered
    options = [
        held.joined({"reshard_after_forward": reshard & (held.pp == 1)}) for reshard in (True, False)
    ]
    moments = ranks.moments.ranks(1).at(ranks.at)
    ways = (gathered_bytes(kinds, first, own, element, moments) for own in options)
    # gradients may not be there yet, but the memory of those before may be kept
    unmade = unmade_bytes(facts, first, held, moments, When.FIRST) * ~(pooled(facts) & gathers(held))
    bytes_ = states["parameters"] + states["optimizer"] + states["gradients"] + pool[0] - unmade
    # at least half of the running unit's gradients meet what is read
    bytes_ = bytes_ - share * reducing_bytes(kinds, held, element, moments) / 2
    found = np.where(moments.present, bytes_ + share * np.minimum(*ways), -np.inf)[:, 0]
    return stepping.max(axis=0), found.take(at, axis=-1), at
