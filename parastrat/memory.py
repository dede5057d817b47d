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

from parastrat.activations import SAVED_BY, in_flight, kept_bytes, running_bytes
from parastrat.distinct import distinct
from parastrat.estimate import MemoryEstimate
from parastrat.gathered import HELD_BY, gathered_bytes, shards_parameters
from parastrat.ranks import RankLoad, block_kinds, rank_columns
from parastrat.states import (
    context_bytes,
    element_bytes,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    peaks = _rank_peaks(facts, columns, _ranks(facts, columns))
    worst, rows = peaks["total"].argmax(axis=0), np.arange(len(columns.pp))
    parts = {
        part: np.ceil(np.broadcast_to(peaks[part], peaks["total"].shape)[worst, rows]).astype(np.int64)
        for part in PARTS
    }
    total = sum(parts.values())
    capacity = facts.hardware.device.usable_memory_bytes
    return {**parts, "margin": memory_margin(facts, total), "capacity": capacity, "total": total}


def memory_totals(facts: Facts, columns: Columns) -> Any:
    """Return ``total`` of ``memory_columns`` for every row, or up to a byte for each part more.

    In a fraction of the time: what hangs on activations and on states is put together before their rows are
    joined, and no part is told from the others.
    """
    ranks, context = _ranks(facts, columns), context_bytes(facts)
    share = 1 + facts.stack.fragmentation

    def of_held(column: Any) -> Any:
        return column.take(ranks.held_at, axis=-1)

    def of_saved(column: Any) -> Any:
        return column.take(ranks.saved_at, axis=-1)

    one: Any = sum(ranks.kept)
    held = in_flight(columns, of_saved(ranks.load.rank)) * of_saved(share * one)
    states = ranks.states["parameters"] + ranks.states["optimizer"]
    stepping = of_held(states + ranks.states["gradients"] + ranks.optimizer_step)
    at_loss, later = np.full(held.shape, -np.inf), np.full(held.shape, -np.inf)
    for moment in _moments(ranks):
        gathered = of_held(share * moment.gathered)
        passing = share * (moment.running - moment.freed)
        for peak, when in ((at_loss, moment.first), (later, ~moment.first)):
            if (moment.present & when).any():
                these = of_saved(np.where(moment.present & when, passing, -np.inf))
                np.maximum(peak, gathered + these, out=peak)
    own_later, own_at_loss = _gradients_held(columns, of_held(ranks.states["gradients"]))
    backward = of_held(states) + held + np.maximum(later + own_later, at_loss + own_at_loss)
    total = context + np.maximum(stepping, backward).max(axis=0)
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
class _Ranks:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: bytes that stay, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    #: what is gathered while a block runs, by ``held_at``, when it first does and at the end
    gathered: Callable[[int], tuple[Any, ...]]
    held_at: Any
    #: bytes that all repeats of each block keep, and what exists while one runs, by ``saved_at``
    kept: list[Any]
    running: list[Any]
    #: equal for units that run backward alike; a block outside units is one of its own
    kinds: tuple[int, ...]
    saved_at: Any


def _ranks(facts: Facts, columns: Columns) -> _Ranks:
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, HELD_BY)
    saved, saved_at = distinct(columns, SAVED_BY)
    kinds = block_kinds(model)
    own = list(dict.fromkeys(kinds))
    kept = kept_bytes([model.blocks[kind] for kind in own], saved)
    running = running_bytes([model.blocks[kind] for kind in own], kept, saved)
    load, same = rank_columns(model, held), rank_columns(model, saved)
    # the end differs where a pipeline gathers unit by unit
    unit_by_unit = np.any(held.reshard_after_forward & (held.pp > 1) & shards_parameters(held))

    def gathered(place: int) -> tuple[Any, ...]:
        ends = (False, True) if unit_by_unit else (False,)
        return tuple(gathered_bytes(model, load, held, element, place, at_end=at_end) for at_end in ends)

    return _Ranks(
        load=same,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        gathered=gathered,
        held_at=held_at,
        kept=[kept[own.index(kind)] * count for kind, count in zip(kinds, same.repeats, strict=True)],
        running=[running[own.index(kind)] for kind in kinds],
        kinds=tuple(
            kind if block.unit else -1 - place
            for place, (kind, block) in enumerate(zip(kinds, model.blocks, strict=True))
        ),
        saved_at=saved_at,
    )


def _rank_peaks(facts: Facts, c: Columns, ranks: _Ranks) -> dict[str, Any]:
    """Return the composition at the peak of each pipeline rank."""
    states = {name: part[..., ranks.held_at] for name, part in ranks.states.items()}
    one: Any = sum(ranks.kept)
    held = in_flight(c, ranks.load.rank[..., ranks.saved_at]) * one[..., ranks.saved_at]
    context = context_bytes(facts)
    peak = _composition(
        {
            **states,
            "activations": np.zeros(len(c.pp)),
            # while a foreach optimizer runs there are no activations, but one temporary copy
            "transient": ranks.optimizer_step[..., ranks.held_at],
            "overhead": np.full(len(c.pp), float(context)),
        }
    )
    later, at_loss = _gradients_held(c, states["gradients"])
    for moment in _moments(ranks):
        activations = held - moment.freed[..., ranks.saved_at]
        transient = moment.gathered[..., ranks.held_at] + moment.running[..., ranks.saved_at]
        parts = {
            **states,
            "gradients": np.where(moment.first[..., ranks.saved_at], at_loss, later),
            "activations": activations,
            "transient": transient,
            "overhead": context + facts.stack.fragmentation * (activations + transient),
        }
        peak = _larger(peak, _composition(parts), moment.present[..., ranks.saved_at])
    return peak


def _gradients_held(c: Columns, gradients: Any) -> tuple[Any, Any]:
    """Return the gradients that are there while blocks run backward, and when the first of all does.

    Sharded ones come with the first reduction: after the loss, under a pipeline at the end.
    """
    sharded = shards_parameters(c)
    later = np.where((c.pp > 1) & sharded, 0, gradients)
    return later, np.where((c.gradient_accumulation_steps == 1) & sharded, 0, later)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """A block's backward, at which a rank may peak; arrays as in ``_Ranks``."""

    #: by ``held_at``
    gathered: Any
    #: by ``saved_at``: what exists while it runs, and what was freed before
    running: Any
    freed: Any
    #: where nothing ran backward yet, and where the rank has the block
    first: Any
    present: Any


def _moments(ranks: _Ranks) -> Iterator[_Moment]:
    """Yield the moments at which a rank may peak, from the last block to the first.

    A unit that follows one of its kind is left out, unless that one was the first of all, without
    gradients: it finds less kept, and all else equal.
    """
    none = np.zeros(ranks.load.rank.shape, dtype=bool)
    one: Any = sum(ranks.kept)
    seen: dict[int, Any] = {}
    first, freed = ~none, np.zeros(none.shape)
    for place in reversed(range(len(ranks.kept))):
        repeats, kept, kind = ranks.load.repeats[place], ranks.kept[place], ranks.kinds[place]
        present, before = repeats > 0, seen.get(kind, none)
        if (present & ~before).any():
            # the first repeat of the block in backward, and under a pipeline that reshards the last of all
            gone_at_end = one - kept / np.maximum(repeats, 1)
            for gathered, gone in zip(ranks.gathered(place), (freed, gone_at_end), strict=False):
                yield _Moment(
                    gathered=gathered,
                    running=ranks.running[place],
                    freed=gone,
                    first=first,
                    present=present,
                )
        seen[kind] = before | (present & ~first)
        first = first & ~present
        freed = freed + kept
