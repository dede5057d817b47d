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

from parastrat.errors import UsageError
from parastrat.estimate import MemoryEstimate
from parastrat.memory.crossing import crossing_bytes
from parastrat.memory.flying import in_flight, takes_turns
from parastrat.memory.gathered import When, gathers
from parastrat.memory.held import WAYS, RanksHeld, ranks_held, ways
from parastrat.memory.pools import pooled
from parastrat.memory.unmade import early, early_bytes, lacking_bytes
from parastrat.ranks.states import context_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")

#: what no rank has; a plan that needs more is told from one that fits, but not what it needs
_MOST_BYTES = 2**58


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    peaks = _peaks(facts, columns, ranks_held(facts, columns))
    parts = {part: counted(peaks[part]) for part in PARTS}
    total = sum(parts.values())
    capacity = facts.hardware.device.usable_memory_bytes
    return {**parts, "margin": memory_margin(facts, total), "capacity": capacity, "total": total}


def counted(amount: Any) -> Any:
    """Return bytes as whole numbers: rounded up, and no more than those that are counted."""
    return np.minimum(np.ceil(amount), _MOST_BYTES).astype(np.int64)


def memory_margin(facts: Facts, total: Any) -> Any:
    """Return the 95th percentile of an estimate's error, bytes."""
    capacity = facts.hardware.device.usable_memory_bytes
    return np.minimum(facts.stack.memory_margin * total, 0.08 * capacity).astype(np.int64)


def memory_estimate(memory: Mapping[str, Any], row: int) -> MemoryEstimate:
    """Return one row of ``memory_columns`` as a value.

    Raises:
        UsageError: bytes that were not counted, there are too many.
    """
    parts = {part: int(memory[part][row]) for part in PARTS}
    if max(parts.values()) >= _MOST_BYTES:
        raise UsageError(
            f"one rank needs more than {_MOST_BYTES // 2**50:,} PiB, which parastrat does not count",
            hint="train on shorter sequences, or on fewer of them at once",
        )
    return MemoryEstimate(
        **parts,
        capacity=int(memory["capacity"]),
        margin=int(memory["margin"][row]),
    )


def _composition(parts: dict[str, Any]) -> dict[str, Any]:
    return {**parts, "total": sum(parts[part] for part in PARTS)}


def _peaks(facts: Facts, c: Columns, ranks: RanksHeld) -> dict[str, Any]:
    """Return the composition at the peak of each row's worst pipeline rank, the first of equal moments."""
    stepping, backward = _stepping(facts, c, ranks), _backward(facts, c, ranks)
    rows = np.arange(len(c.pp))
    most = np.where(_by_way(ranks, ranks.present), backward["total"], -np.inf)
    total = np.maximum(stepping["total"], most.max(axis=0, initial=-np.inf))
    worst = total.argmax(axis=0)
    steps = stepping["total"][worst, rows] == total[worst, rows]
    if steps.all():
        return {part: stepping[part][worst, rows] for part in PARTS}
    moment = most[:, worst, rows].argmax(axis=0)
    return {
        part: np.where(
            steps, stepping[part][worst, rows], backward[part][moment % len(backward[part]), worst, rows]
        )
        for part in PARTS
    }


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
    yield MomentHeld(moment=None, when=When.END, parts=_stepping(facts, c, ranks))
    backward, present = _backward(facts, c, ranks), _by_way(ranks, ranks.present)
    for place, own in enumerate(present):
        way, moment = divmod(place, len(ranks.present))
        parts = {name: part[place % len(part)] for name, part in backward.items()}
        yield MomentHeld(moment=moment, when=WAYS[way], parts=parts, present=own)


def _stepping(facts: Facts, c: Columns, ranks: RanksHeld) -> dict[str, Any]:
    """Return what each pipeline rank holds in the optimizer step.

    While a foreach optimizer runs there are no activations, but one temporary copy.
    """
    states = {name: ranks.of_held(part) for name, part in ranks.states.items()}
    rank = ranks.of_saved(ranks.load.rank)
    buffers, _ = crossing_bytes(facts, c, rank, in_flight(c, rank))
    transient = ranks.of_held(ranks.optimizer_step) + buffers
    return _composition(
        {
            **states,
            "activations": np.zeros_like(transient),
            "transient": transient,
            "overhead": _reserve(facts, ranks),
        }
    )


def _reserve(facts: Facts, ranks: RanksHeld) -> Any:
    return context_bytes(facts) + ranks.of_held(ranks.pool)


def _each_moment(ranks: RanksHeld, several: Any) -> Any:
    """Return what is known of each way to meet moments, beside these, ranks and rows."""
    return np.repeat(several, len(ranks.present))[:, None, None]


def _by_way(ranks: RanksHeld, column: Any) -> Any:
    """Return what is known of each moment by ``saved_at``, beside every way to meet it and of every row."""
    return np.concatenate([ranks.of_saved(column)] * len(ranks.gathered))


def _backward(facts: Facts, c: Columns, ranks: RanksHeld) -> dict[str, Any]:
    """Return what each pipeline rank holds at the moments of backward, in arrays with these before ranks.

    Way after way to meet them; what is the same at all moments stands there once. Beside ``PARTS`` and
    their total these are the transient's ``gathered``, ``running`` and ``waiting``.
    """
    states = {name: ranks.of_held(part) for name, part in ranks.states.items()}
    gathered, freed, unreduced, when = (list(own) for own in zip(*ways(ranks), strict=True))
    rank, one = ranks.of_saved(ranks.load.rank), ranks.of_saved(ranks.one)
    flying = in_flight(c, rank)
    buffers, sent = crossing_bytes(facts, c, rank, flying)
    held = np.where(takes_turns(c), 0.0, flying * one) + sent
    never = ranks.never_met()
    activations = held - ranks.of_saved(np.concatenate(freed))
    moving = {
        "gathered": ranks.of_held(np.concatenate(gathered)) - np.concatenate([never] * len(gathered)),
        "running": _by_way(ranks, ranks.running),
        "waiting": ranks.of_held(ranks.waiting) * several_steps(c) * _each_moment(ranks, unreduced),
    }
    transient = moving["gathered"] + moving["running"] + moving["waiting"] + buffers
    share = 1 + facts.stack.fragmentation
    unmade = np.concatenate([ranks.unmade.at(each) for each in when])
    adding = 0.0 if ranks.adding is None else share * _by_way(ranks, ranks.adding)
    lacking = lacking_bytes(ranks.of_held(unmade) + adding, share * one, flying, c)
    unmade_yet = np.maximum(lacking - adding, 0)
    transient = transient - (lacking - unmade_yet) / share
    if np.any(early(c, flying)):
        waiting = ranks.of_held(np.concatenate([ranks.unmade.waiting_at(each) for each in when]))
        not_yet = early_bytes(waiting, one, flying, c)
        moving["gathered"] = moving["gathered"] - not_yet
        transient = transient - not_yet
    # those of the step before are freed, and their memory is kept for the next
    kept = lacking * gathers(c) * pooled(facts)
    lost = facts.stack.fragmentation * (activations + transient)
    parts = {
        **{name: part[None] for name, part in states.items()},
        "gradients": states["gradients"] - unmade_yet,
        "activations": activations,
        "transient": transient,
        "overhead": _reserve(facts, ranks) + kept + lost,
    }
    return {**_composition(parts), **moving}


def several_steps(c: Columns) -> Any:
    """Return where a step has several micro-batches."""
    return c.gradient_accumulation_steps > 1
