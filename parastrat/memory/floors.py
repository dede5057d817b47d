"""What a plan needs at least, before its resharding is chosen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from parastrat.columns import code_of
from parastrat.distinct import distinct, standing
from parastrat.memory.activations import SAVED_BY, everything_bytes, kept_bytes
from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.flying import few_steps, in_flight, of_kinds, takes_turns, ways_of_turns
from parastrat.memory.gathered import (
    HELD_BY,
    When,
    gathering_of,
    gathers,
    reducing_bytes,
    shards_parameters,
    waiting_bytes,
)
from parastrat.memory.pools import idle_pool, pooled
from parastrat.memory.running import running_bytes
from parastrat.memory.unmade import early, leaves_free, unmade_of
from parastrat.ranks import block_kinds, mean_ranks, ranks_of
from parastrat.ranks.states import (
    context_bytes,
    element_bytes,
    local_total,
    state_bytes,
    stepping_bytes,
)
from parastrat.schedules import splits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.plan import Recompute
    from parastrat.ranks import Ranks
    from parastrat.ranks.moments import Moments
    from parastrat.units import Bytes

#: bytes of each kind under each policy, so many of each on each rank at each moment, added up
_EACH_KIND = "kcn,pkrn->pcrn"

#: ranks whose backward is looked at: the first has most in flight, of those behind it the next
_FOREMOST = 2


def memory_floor(facts: Facts, columns: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what the plans of a row need at least under each policy, whatever resharding they have.

    That is the largest of each rank's states in the optimizer step, which options do not change, and of
    the foremost ranks' peaks in backward, with the lesser of the gathered parameters; either beside what
    the allocator holds for gathering.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    blocks, share = block_kinds(facts.model).blocks, 1 + facts.stack.fragmentation
    states = _held(facts, columns, share)
    more = columns.joined({"few_steps": few_steps(columns)})
    names = (*(name for name in SAVED_BY if name != "recompute"), "few_steps")
    saved, saved_at = standing(more, names)
    ranks = ranks_of(facts.model, saved)
    one_batch, at = distinct(
        saved, ("micro_batch_size", "cp", "tp", "ep", "sequence_parallel", "loss_parallel", "shard", "pp")
    )
    first, moments = ranks.foremost(_FOREMOST), ranks.foremost_moments(_FOREMOST)
    rank = first.rank.take(saved_at, axis=-1)
    flying = in_flight(columns, rank)
    codes, places = [code_of(policy) for policy in policies], np.arange(len(one_batch.pp))
    each = one_batch.at(np.tile(places, len(codes))).joined({"recompute": np.repeat(codes, len(places))})
    kept = kept_bytes(facts, each)
    # policies before the rows of all that follows
    shape = len(blocks), len(codes), len(places)
    every = everything_bytes(facts, kept, each)
    running = running_bytes(facts, kept, every, each)
    kept, every, running = (
        of_kind.reshape(shape).take(at, axis=-1)[:, :, None] for of_kind in (kept, every, running)
    )
    peak = np.full((len(codes), *rank.shape), -np.inf)
    freed, apart = _freed_at(ranks, saved, moments, kept), splits(saved) & takes_turns(saved)
    for place, kind in enumerate(moments.kinds):
        # what is made again may be among what waits beside it, which is not counted
        own = running[kind] - apart * (every[kind] - kept[kind]) if apart.any() else running[kind]
        passing = share * (own - freed[place])
        # later moments may hold more, not less
        never = share * np.minimum(states.reducing[place], every[kind].take(saved_at, axis=-1))
        np.maximum(peak, states.beside[place] + passing.take(saved_at, axis=-1) - never, out=peak)
    one = (share * of_kinds(kept, first.repeats)).take(saved_at, axis=-1)
    peak += np.where(takes_turns(columns), 0.0, flying * one)
    soon = early(columns, flying)
    if soon.any():
        # of gradients that wait for the end of a step there may be none yet
        peak -= np.where(soon, states.unreduced, 0.0)
    several = columns.joined({"recompute": np.array(codes)[:, None, None]})
    buffers, sent = crossing_bytes(facts, several, rank, flying)
    peak += share * (buffers + sent)
    return np.maximum(states.stepping, peak.max(axis=1)) + context_bytes(facts)


def _freed_at(ranks: Ranks, c: Columns, moments: Moments, kept: Bytes) -> Bytes:
    """Return what was freed before each moment, of all that is in flight; what takes turns holds, below 0.

    Args:
        ranks: of the plans' pipelines.
        c: the plans.
        moments: of their foremost ranks.
        kept: by one repeat of each kind of block under each policy, before an axis of ranks and plans.

    Returns:
        Moments before policies before ranks before plans.
    """
    counts, each = moments.freed, kept[:, :, 0]
    turning = np.flatnonzero(takes_turns(c))
    if turning.size:
        own = c.at(turning)
        # at the first of the moments of most, whatever waits beside it
        begun = ranks.among(turning).first_backwards(_FOREMOST, ways_of_turns(own), moments.kinds)
        counts = counts.copy()
        counts[..., turning] = -begun
    freed: Bytes = np.einsum(_EACH_KIND, each, counts)
    few = np.flatnonzero(c.few_steps)
    if few.size:
        one = of_kinds(kept[..., few], ranks.among(few).foremost(_FOREMOST).repeats)
        least = np.einsum(_EACH_KIND, each[..., few], moments.freed[..., few]) - c.few_steps[few] * one
        freed[..., few] = np.maximum(freed[..., few], least)
    return freed


def mesh_floor(facts: Facts, columns: Columns) -> Bytes:
    """Return what the plans of a mesh need at least, whatever their micro-batch, schedule and options.

    That is of the rank with the mean load what steps and, under a pipeline, what backward leaves gathered
    and unreduced: both are linear in what a rank holds, so that some rank needs as much.
    """
    element, load = element_bytes(facts), mean_ranks(facts.model, columns)
    states = state_bytes(load, columns, element)
    stepping = sum(states.values()) + stepping_bytes(load, columns, element)
    everything = local_total(load.trainable, columns) + local_total(load.frozen, columns)
    gathered = (1 + facts.stack.fragmentation) * (element.compute + element.reduce) * everything
    piped = (columns.pp > 1) & shards_parameters(columns)
    kept = states["parameters"] + states["optimizer"] + pooled(facts) * states["gradients"]
    backward = np.where(piped, kept + gathered, 0.0)
    return np.maximum(stepping, backward) + context_bytes(facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    """What plans hold that does not hang on activations, in bytes; of each row's foremost ranks."""

    #: in the optimizer step, of the rank with most
    stepping: Bytes
    #: at each moment of backward, below 0 where a rank has no such block
    beside: Bytes
    #: gradients that the running unit makes later than that
    reducing: Bytes
    #: all gradients, as they are reduced
    unreduced: Bytes


def _held(facts: Facts, columns: Columns, share: float) -> _Held:
    """Return what some plans hold beside activations."""
    model, element, kinds = facts.model, element_bytes(facts), block_kinds(facts.model)
    held, at = standing(columns, tuple(name for name in HELD_BY if name != "reshard_after_forward"))
    ranks = ranks_of(model, held)
    every, first = ranks.every, ranks.foremost(_FOREMOST)
    pool = idle_pool(facts, every, held)
    states = state_bytes(every, held, element)
    stepping = sum(states.values()) + stepping_bytes(every, held, element) + pool
    states = {name: part[:_FOREMOST] for name, part in states.items()}
    moments = ranks.foremost_moments(_FOREMOST)
    gathered = gathering_of(kinds, first, held, element, moments, facts.stack).least()
    bytes_ = states["parameters"] + states["optimizer"] + states["gradients"] + pool[:_FOREMOST]
    if np.any(leaves_free(facts, held)):
        # gradients may not be there yet, but the memory of those before may be kept
        unmade = unmade_of(facts, first, held, moments).at(When.FIRST)
        bytes_ = bytes_ - unmade * ~(pooled(facts) & gathers(held))
    found = np.where(moments.present, bytes_ + share * gathered, -np.inf)
    waiting = share * waiting_bytes(facts, first, held, element).take(at, axis=-1)
    found = found.take(at, axis=-1) + waiting * (columns.gradient_accumulation_steps > 1)
    reducing, _ = reducing_bytes(kinds, held, element, moments)
    unreduced = share * element.reduce * local_total(first.trainable, held)
    return _Held(
        stepping=stepping.max(axis=0)[at],
        beside=found,
        reducing=reducing.take(at, axis=-1),
        unreduced=unreduced.take(at, axis=-1),
    )
