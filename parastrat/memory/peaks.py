"""Peak memory of the worst rank, from the blocks of a model.

Memory is followed through the moments of a step at which it can peak: the start of the backward of each
kind of block, and the optimizer step. Everything is exact for parameters, gradients and optimizer states;
activations are what the blocks say that backward reads.

Sources: FSDP2's gathering and resharding, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html;
micro-batches in flight, Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.distinct import distinct
from parastrat.estimate import MemoryEstimate
from parastrat.memory.activations import SAVED_BY, in_flight, kept_bytes, running_bytes
from parastrat.memory.gathered import HELD_BY, When, gathered_bytes, shards_parameters, waiting_bytes
from parastrat.memory.pools import gathering_pool, pooled
from parastrat.ranks import RankLoad, block_kinds, ranks_of
from parastrat.ranks.states import (
    context_bytes,
    element_bytes,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns

#: when moments of backward are looked at; the last one only where a pipeline gathers unit by unit
WAYS = (When.FIRST, When.COPIED, When.END)
PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    peaks = _rank_peaks(facts, columns, ranks_held(facts, columns))
    worst, rows = peaks["total"].argmax(axis=0), np.arange(len(columns.pp))
    parts = {part: np.ceil(peaks[part][worst, rows]).astype(np.int64) for part in PARTS}
    total = sum(parts.values())
    capacity = facts.hardware.device.usable_memory_bytes
    return {**parts, "margin": memory_margin(facts, total), "capacity": capacity, "total": total}


def memory_totals(facts: Facts, columns: Columns) -> Any:
    """Return ``total`` of ``memory_columns`` for every row, or up to a byte for each part more.

    In a fraction of the time: what hangs on activations and on states is put together before their rows are
    joined, and no part is told from the others.
    """
    ranks, context = ranks_held(facts, columns), context_bytes(facts)
    share = 1 + facts.stack.fragmentation

    def of_held(column: Any) -> Any:
        return column.take(ranks.held_at, axis=-1)

    def of_saved(column: Any) -> Any:
        return column.take(ranks.saved_at, axis=-1)

    held = in_flight(columns, of_saved(ranks.load.rank)) * of_saved(share * ranks.one)
    states = ranks.states["parameters"] + ranks.states["optimizer"]
    stepping = of_held(states + ranks.states["gradients"] + ranks.optimizer_step)
    gradients = of_held(ranks.states["gradients"])
    if not pooled(facts):
        later, at_loss = _gradients_held(columns, gradients)
        gradients = np.where(of_saved(ranks.first), at_loss, later)
    peak = np.full(held.shape, -np.inf)
    waiting = of_held(share * ranks.waiting) * _several(columns)
    for gathered, freed, unreduced in _ways(ranks):
        passing = np.where(ranks.present, share * (ranks.running - freed), -np.inf)
        most = (of_held(share * gathered) + of_saved(passing) + gradients).max(axis=0)
        np.maximum(peak, most + waiting * unreduced, out=peak)
    backward = of_held(states) + held + peak
    total = context + (of_held(ranks.pool) + np.maximum(stepping, backward)).max(axis=0)
    return np.ceil(total).astype(np.int64) + len(PARTS)


def memory_margin(facts: Facts, total: Any) -> Any:
    """Return the 95th percentile of an estimate's error, bytes."""
    capacity = facts.hardware.device.usable_memory_bytes
    return np.minimum(facts.stack.memory_margin * total, 0.08 * capacity).astype(np.int64)


def memory_estimate(memory: Mapping[str, Any], row: int) -> MemoryEstimate:
    """Return one row of ``memory_columns`` as a value."""
    return MemoryEstimate(
        **{part: int(memory[part][row]) for part in PARTS},
        capacity=int(memory["capacity"]),
        margin=int(memory["margin"][row]),
    )


def _larger(one: dict[str, Any], other: dict[str, Any], where: Any = True) -> dict[str, Any]:
    """Return, row by row, the composition with the larger total; the first one outside ``where``."""
    larger = (other["total"] > one["total"]) & where
    return {
        part: one[part] if one[part] is other[part] else np.where(larger, other[part], one[part])
        for part in (*PARTS, "total")
    }


def _composition(parts: dict[str, Any]) -> dict[str, Any]:
    return {**parts, "total": sum(parts[part] for part in PARTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksHeld:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: bytes that stay, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    #: what the allocator holds for gathering, by ``held_at``
    pool: Any
    #: of a micro-batch's gradients what waits while the next one runs, by ``held_at``
    waiting: Any
    #: what is gathered at each moment at which a rank may peak, by ``held_at``; the same when its block has
    #: run once; and, where that differs, at the end of all
    gathered: tuple[Any, ...]
    held_at: Any
    #: what all blocks of a rank keep, by ``saved_at``
    one: Any
    #: at each moment, by ``saved_at``: what exists while its block runs, what one repeat of that keeps, and
    #: what was freed before
    running: Any
    kept: Any
    freed: Any
    #: where nothing ran backward yet, and where the rank has the block
    first: Any
    present: Any
    saved_at: Any


def ranks_held(facts: Facts, columns: Columns) -> RanksHeld:
    """Return what the distinct pipeline ranks of every row hold."""
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, HELD_BY)
    saved, saved_at = distinct(columns, SAVED_BY)
    kinds = block_kinds(model)
    kept = kept_bytes(kinds.blocks, saved)
    of_held, of_saved = ranks_of(model, held), ranks_of(model, saved)
    load, same = of_held.every, of_saved.every
    # the end differs where a pipeline gathers unit by unit
    unit_by_unit = np.any(held.reshard_after_forward & (held.pp > 1) & shards_parameters(held))

    own, ways = of_held.moments.at(of_held.at), WAYS if unit_by_unit else WAYS[:2]
    moments = of_saved.moments.at(of_saved.at)
    freed = sum(moments.freed[:, kind] * each for kind, each in enumerate(kept))
    return RanksHeld(
        load=same,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        pool=gathering_pool(kinds, load, held, element) * pooled(facts),
        waiting=waiting_bytes(facts, load, held, element),
        gathered=tuple(gathered_bytes(kinds, load, held, element, own, when) for when in ways),
        held_at=held_at,
        one=sum(each * count for each, count in zip(kept, same.repeats, strict=True)),
        running=running_bytes(kinds.blocks, kept, saved)[moments.kinds][:, None],
        kept=kept[moments.kinds][:, None],
        freed=freed,
        first=moments.first,
        present=moments.present,
        saved_at=saved_at,
    )


def _ways(ranks: RanksHeld) -> Iterator[tuple[Any, Any, bool]]:
    """Yield what is gathered at each moment, what was freed before, and whether no unit has reduced yet.

    Moments may be met as the first repeat of a block in backward, as the second, and under a pipeline that
    reshards as the last.
    """
    freed = ranks.freed, ranks.freed + ranks.kept, ranks.one - ranks.kept
    return zip(ranks.gathered, freed, (True, False, False), strict=False)


def _rank_peaks(facts: Facts, c: Columns, ranks: RanksHeld) -> dict[str, Any]:
    """Return the composition at the peak of each pipeline rank."""
    moments = moments_held(facts, c, ranks)
    peak = next(moments).parts
    for moment in moments:
        peak = _larger(peak, moment.parts, moment.present)
    return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentHeld:
    """What pipeline ranks hold at one moment at which they may peak, in arrays with ranks before rows."""

    #: place among the moments of backward; None: the optimizer steps
    moment: int | None
    #: of the block's repeats in backward
    when: When
    #: ``PARTS`` and their total; in backward also the transient's ``gathered``, ``running``, ``waiting``
    parts: dict[str, Any]
    #: where a rank has that moment
    present: Any = True


def moments_held(facts: Facts, c: Columns, ranks: RanksHeld) -> Iterator[MomentHeld]:
    """Yield what each pipeline rank holds in the optimizer step, then at the moments of backward."""
    states = {name: part[..., ranks.held_at] for name, part in ranks.states.items()}
    held = in_flight(c, ranks.load.rank[..., ranks.saved_at]) * ranks.one[..., ranks.saved_at]
    reserve = context_bytes(facts) + ranks.pool[..., ranks.held_at]
    # while a foreach optimizer runs there are no activations, but one temporary copy
    temporary = {"activations": np.zeros(len(c.pp)), "transient": ranks.optimizer_step[..., ranks.held_at]}
    stepping = _composition({**states, **temporary, "overhead": reserve})
    yield MomentHeld(moment=None, when=When.END, parts=stepping)
    later, at_loss = _gradients_held(c, states["gradients"])
    waiting = ranks.waiting[..., ranks.held_at] * _several(c)
    for when, (gathered, freed, unreduced) in zip(WAYS, _ways(ranks), strict=False):
        for moment, present in enumerate(ranks.present):
            activations = held - freed[moment][..., ranks.saved_at]
            running = ranks.running[moment][..., ranks.saved_at]
            transient = gathered[moment][..., ranks.held_at] + running + waiting * unreduced
            gradients = np.where(ranks.first[moment][..., ranks.saved_at], at_loss, later)
            # those of the step before are freed, and their memory is kept for the next
            kept = (states["gradients"] - gradients) * pooled(facts)
            parts = {
                **states,
                "gradients": gradients,
                "activations": activations,
                "transient": transient,
                "overhead": reserve + kept + facts.stack.fragmentation * (activations + transient),
            }
            beside = {"gathered": gathered[moment][..., ranks.held_at], "running": running}
            yield MomentHeld(
                moment=moment,
                when=when,
                parts={**_composition(parts), **beside, "waiting": waiting * unreduced},
                present=present[..., ranks.saved_at],
            )


def _several(c: Columns) -> Any:
    """Return where a step has several micro-batches."""
    return c.gradient_accumulation_steps > 1


def _gradients_held(c: Columns, gradients: Any) -> tuple[Any, Any]:
    """Return the gradients that are there while blocks run backward, and when the first of all does.

    Sharded ones come with the first reduction: after the loss, under a pipeline at the end.
    """
    sharded = shards_parameters(c)
    later = np.where((c.pp > 1) & sharded, 0, gradients)
    return later, np.where((c.gradient_accumulation_steps == 1) & sharded, 0, later)
