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

from parastrat.columns import Columns, code_of
from parastrat.distinct import distinct
from parastrat.estimate import MemoryEstimate
from parastrat.model import Saved
from parastrat.plan import PipelineSchedule, Recompute, Shard
from parastrat.ranks import RankLoad, block_kinds, rank_columns
from parastrat.states import (
    ElementBytes,
    block_totals,
    context_bytes,
    element_bytes,
    local,
    state_bytes,
    stepping_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.model import Block, ModelSpec
    from parastrat.units import Bytes, Numbers

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")


#: what decides the states of a rank and what FSDP2 gathers of them
HELD_BY = (
    "pp",
    "virtual_stages",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "shard",
    "reshard_after_forward",
    "offload",
)
#: what decides the activations of one micro-batch on a rank
SAVED_BY = ("pp", "virtual_stages", "micro_batch_size", "cp", "tp", "sequence_parallel", "recompute")


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
    margin = np.minimum(facts.stack.memory_margin * total, 0.08 * capacity).astype(np.int64)
    return {**parts, "margin": margin, "capacity": capacity, "total": total}


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


def saved_bytes(saved: Saved, c: Columns) -> Bytes:
    """Return one micro-batch's bytes on one rank of activations given for one sample."""
    sequence = np.where(c.sequence_parallel, c.tp, 1)
    per_sample = saved.replicated + saved.tensor / c.tp + saved.sequence / sequence
    return per_sample * c.micro_batch_size / c.cp


def kept_bytes(block: Block, c: Columns) -> Bytes:
    """Return what one repeat of a block keeps for backward under each row's recompute policy."""
    kept = saved_bytes(block.activations.none, c)
    for policy in (Recompute.ATTENTION, Recompute.SELECTIVE, Recompute.FULL):
        chosen = c.recompute == code_of(policy)
        kept = np.where(chosen, saved_bytes(block.activations.under(policy), c), kept)
    return kept


def in_flight(c: Columns, rank: Numbers) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak.

    GPipe and LoopedBFS hold all; 1F1B as many as there are ranks behind; interleaved chunks as in
    Megatron-LM's schedule; the V schedules about as many as there are ranks.
    """
    behind, schedule, steps = c.pp - rank, c.pp_schedule, c.gradient_accumulation_steps
    interleaved = (2 * (behind - 1) + (c.virtual_stages - 1) * c.pp + 1) / c.virtual_stages
    held = np.where(schedule == code_of(PipelineSchedule.ONE_F_ONE_B), behind, steps)
    for name in (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE):
        held = np.where(schedule == code_of(name), interleaved, held)
    for name in (PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V):
        held = np.where(schedule == code_of(name), c.pp, held)
    return np.where(c.pp > 1, np.minimum(held, steps), 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: bytes that stay, and what is gathered while each block runs, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    gathered: list[Any]
    #: the same when the last of a micro-batch's backward runs, where a pipeline gathers unit by unit
    gathered_at_end: list[Any]
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
    kept_by = {kind: kept_bytes(model.blocks[kind], saved) for kind in dict.fromkeys(kinds)}
    running = {kind: running_bytes(model.blocks[kind], own, saved) for kind, own in kept_by.items()}
    kept = [kept_by[kind] for kind in kinds]
    units = [sum(local(block_totals(block), held)) for block in model.blocks]
    load, same = rank_columns(model, held), rank_columns(model, saved)
    unit_by_unit = np.any(held.reshard_after_forward & (held.pp > 1) & _shards_parameters(held))
    return _Ranks(
        load=same,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        gathered=gathered_bytes(model, load, held, element, units),
        gathered_at_end=gathered_bytes(model, load, held, element, units, at_end=True)
        if unit_by_unit
        else [],
        held_at=held_at,
        kept=[own * count for own, count in zip(kept, same.repeats, strict=True)],
        running=[running[kind] for kind in kinds],
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
    sharded, one_step = _shards_parameters(c), c.gradient_accumulation_steps == 1
    # sharded gradients come with the first reduction: after the loss, under a pipeline at the end
    pipelined = np.where((c.pp > 1) & sharded, 0, states["gradients"])
    at_loss = np.where(one_step & sharded, 0, pipelined)
    for place, first, freed in _moments(ranks):
        running = ranks.running[place][..., ranks.saved_at]
        repeats = ranks.load.repeats[place]
        # the first repeat of a block in backward, and under a pipeline that reshards also the last of all
        ends = [(ranks.gathered, held - freed[..., ranks.saved_at], repeats > 0)]
        if ranks.gathered_at_end:
            last = one - ranks.kept[place] / np.maximum(repeats, 1)
            ends.append((ranks.gathered_at_end, held - last[..., ranks.saved_at], repeats > 0))
        for gathered, activations, present in ends:
            transient = gathered[place][..., ranks.held_at] + running
            moment = {
                **states,
                "gradients": np.where(first[..., ranks.saved_at], at_loss, pipelined),
                "activations": activations,
                "transient": transient,
                "overhead": context + facts.stack.fragmentation * (activations + transient),
            }
            peak = _larger(peak, _composition(moment), present[..., ranks.saved_at])
    return peak


def _moments(ranks: _Ranks) -> Iterator[tuple[int, Any, Any]]:
    """Yield the blocks at whose backward a rank may peak, from the last, with what came before.

    That is where nothing ran backward yet, and what was freed. A unit that follows one of its kind is left
    out, unless that one was the first of all, without gradients: it finds less kept, and all else equal.
    """
    none = np.zeros(ranks.load.rank.shape, dtype=bool)
    seen: dict[int, Any] = {}
    first, freed = ~none, np.zeros(none.shape)
    for place in reversed(range(len(ranks.kept))):
        present, kind = ranks.load.repeats[place] > 0, ranks.kinds[place]
        if (present & ~seen.get(kind, none)).any():
            yield place, first, freed
        seen[kind] = seen.get(kind, none) | (present & ~first)
        first = first & ~present
        freed = freed + ranks.kept[place]


def _shards_parameters(c: Columns) -> Any:
    return c.shard == code_of(Shard.PARAMETERS)


def running_bytes(block: Block, kept: Bytes, c: Columns) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was recomputed."""
    return saved_bytes(block.working, c) + np.maximum(saved_bytes(block.activations.none, c) - kept, 0)


def gathered_bytes(
    model: ModelSpec,
    load: RankLoad,
    c: Columns,
    element: ElementBytes,
    units: list[Numbers],
    *,
    at_end: bool = False,
) -> list[Bytes]:
    """Return for each block FSDP2's gathered parameters and unsharded gradients, or autocast's casts.

    The root unit stays gathered from forward to the end. With resharding two other units are gathered, the
    running one and the prefetched next; the running one's gradients exist in the compute format and,
    copied, in the reduction's. The root's are reduced last, when the first block has run; at the loss
    there are none yet. Under a pipeline torch reduces once a step: gradients stay unsharded, and units stay
    gathered from their backward on (``torch.distributed.pipelining.stage``); with resharding each forward
    ends that, so that all are gathered only at the end of a micro-batch's backward.

    Args:
        model: whose blocks are meant.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
        units: parameters of one repeat of each block on a rank.
        at_end: of a micro-batch's backward under a pipeline, instead of when the block first runs in it.
    """
    everything = sum(local(load.trainable, c)) + sum(local(load.frozen, c))
    root = sum(local(load.root, c))
    several = np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1
    resharded = c.reshard_after_forward & ((c.pp == 1) | (not at_end))
    behind: Numbers = 0.0
    before: Numbers = 0.0
    found = []
    for block, unit, count in zip(model.blocks, units, load.repeats, strict=True):
        if block.unit:
            behind = np.where(count > 0, unit, behind)
            ahead, reduced = 2 * unit, unit
        else:
            # the unit that runs backward next is prefetched; the first block has none behind it
            ahead, reduced = behind, np.where(before == 0, root, 0.0)
        before = before + count
        whole = np.where(resharded, ahead, everything - root)
        unreduced = element.reduce * np.where(c.pp > 1, everything, reduced)
        gathered = element.compute * (root + whole + reduced) + unreduced
        found.append(np.where(_shards_parameters(c), gathered * several, element.cast * everything))
    return found
