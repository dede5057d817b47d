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
from parastrat.hardware import DeviceType
from parastrat.memory.activations import SAVED_BY, in_flight, kept_bytes, running_bytes
from parastrat.memory.gathered import HELD_BY, gathered_bytes, shards_parameters
from parastrat.memory.pools import gathering_pool
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
    from parastrat.ranks.moments import Moment

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

    held = in_flight(columns, of_saved(ranks.load.rank)) * of_saved(share * ranks.one)
    states = ranks.states["parameters"] + ranks.states["optimizer"]
    stepping = of_held(states + ranks.states["gradients"] + ranks.optimizer_step)
    at_loss, later = np.full(held.shape, -np.inf), np.full(held.shape, -np.inf)
    for moment in _moments(ranks):
        gathered = of_held(share * moment.gathered)
        passing = share * (moment.running - moment.freed)
        for peak, when in ((at_loss, moment.first), (later, ~moment.first)):
            there = moment.present & when
            if there.any():
                np.maximum(peak, gathered + of_saved(np.where(there, passing, -np.inf)), out=peak)
    gradients = of_held(ranks.states["gradients"])
    own_later, own_at_loss = (
        (gradients, gradients) if _pooled(facts) else _gradients_held(columns, gradients)
    )
    backward = of_held(states) + held + np.maximum(later + own_later, at_loss + own_at_loss)
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
class _Ranks:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: bytes that stay, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    #: what the allocator holds for gathering, by ``held_at``
    pool: Any
    #: by kind of block what is gathered as it starts backward, by ``held_at``, and, where that differs, at
    #: the end of all
    gathered: dict[int, tuple[Any, ...]]
    held_at: Any
    #: by kind of block the bytes that one repeat keeps, and what exists while it runs, by ``saved_at``
    kept: Any
    running: Any
    #: what all blocks of a rank keep, by ``saved_at``
    one: Any
    saved_at: Any
    #: when ranks may peak, and where in these arrays those of ``saved_at`` are
    moments: tuple[Moment, ...]
    pipelines_at: Any


def _ranks(facts: Facts, columns: Columns) -> _Ranks:
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, HELD_BY)
    saved, saved_at = distinct(columns, SAVED_BY)
    blocks = block_kinds(model).blocks
    kept = kept_bytes(blocks, saved)
    of_held, of_saved = ranks_of(model, held), ranks_of(model, saved)
    load, same = of_held.every, of_saved.every
    # the end differs where a pipeline gathers unit by unit
    unit_by_unit = np.any(held.reshard_after_forward & (held.pp > 1) & shards_parameters(held))

    def gathered(moment: Moment) -> tuple[Any, ...]:
        ends, own = (False, True) if unit_by_unit else (False,), moment.at(of_held.at)
        return tuple(gathered_bytes(blocks, load, held, element, own, at_end=at_end) for at_end in ends)

    return _Ranks(
        load=same,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        pool=gathering_pool(blocks, load, held, element) * _pooled(facts),
        # a further moment of a kind is of a unit, which gathers alike
        gathered={moment.kind: gathered(moment) for moment in reversed(of_held.moments)},
        held_at=held_at,
        kept=kept,
        running=running_bytes(blocks, kept, saved),
        one=sum(each * count for each, count in zip(kept, same.repeats, strict=True)),
        saved_at=saved_at,
        moments=of_saved.moments,
        pipelines_at=of_saved.at,
    )


def _rank_peaks(facts: Facts, c: Columns, ranks: _Ranks) -> dict[str, Any]:
    """Return the composition at the peak of each pipeline rank."""
    states = {name: part[..., ranks.held_at] for name, part in ranks.states.items()}
    held = in_flight(c, ranks.load.rank[..., ranks.saved_at]) * ranks.one[..., ranks.saved_at]
    reserve = context_bytes(facts) + ranks.pool[..., ranks.held_at]
    peak = _composition(
        {
            **states,
            "activations": np.zeros(len(c.pp)),
            # while a foreach optimizer runs there are no activations, but one temporary copy
            "transient": ranks.optimizer_step[..., ranks.held_at],
            "overhead": reserve,
        }
    )
    later, at_loss = _gradients_held(c, states["gradients"])
    for moment in _moments(ranks):
        activations = held - moment.freed[..., ranks.saved_at]
        transient = moment.gathered[..., ranks.held_at] + moment.running[..., ranks.saved_at]
        gradients = np.where(moment.first[..., ranks.saved_at], at_loss, later)
        # those of the step before are freed, and their memory is kept for the next
        kept = (states["gradients"] - gradients) * _pooled(facts)
        parts = {
            **states,
            "gradients": gradients,
            "activations": activations,
            "transient": transient,
            "overhead": reserve + kept + facts.stack.fragmentation * (activations + transient),
        }
        peak = _larger(peak, _composition(parts), moment.present[..., ranks.saved_at])
    return peak


def _pooled(facts: Facts) -> bool:
    """Return whether what is freed stays with the stream that made it, as in torch on accelerators."""
    return facts.hardware.device.type is not DeviceType.CPU


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
    """Yield the moments at which a rank may peak, with their bytes."""
    for moment in ranks.moments:
        repeats = moment.freed.take(ranks.pipelines_at, axis=-1)
        freed = sum((own * kept for own, kept in zip(repeats, ranks.kept, strict=True)), 0.0)
        # the first repeat of the block in backward, and under a pipeline that reshards the last of all
        gone_at_end = ranks.one - ranks.kept[moment.kind]
        for gathered, gone in zip(ranks.gathered[moment.kind], (freed, gone_at_end), strict=False):
            yield _Moment(
                gathered=gathered,
                running=ranks.running[moment.kind],
                freed=gone,
                first=moment.first.take(ranks.pipelines_at, axis=-1),
                present=moment.present.take(ranks.pipelines_at, axis=-1),
            )
