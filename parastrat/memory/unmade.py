"""Gradients that backward has not made yet, where each step makes them anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.memory.gathered import RAN, When, gathers
from parastrat.memory.pools import pooled
from parastrat.memory.running import soonest
from parastrat.plan import Offload, Shard
from parastrat.ranks import block_kinds
from parastrat.ranks.states import (
    divided_over,
    element_bytes,
    local,
    local_total,
    shard_ranks,
    trainable_totals,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import ParameterTotals, RankLoad
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.moments import Moments
    from parastrat.units import Bytes


def makes_gradients(facts: Facts, c: Columns) -> Any:
    """Return where gradients come one by one: torch's, which ``zero_grad`` frees, in no buckets of DDP.

    Pipelines average over data ranks at the end of a step, without DDP. Megatron's gradients stand in one
    buffer.
    """
    return (
        ((c.dp * c.cp == 1) | (c.pp > 1))
        & (c.shard == code_of(Shard.NONE))
        & (not facts.stack.kernels.fused)
    )


def leaves_free(facts: Facts, c: Columns) -> Any:
    """Return where gradients that are not made yet leave memory free.

    What comes from a stream of its own is kept for the next step.
    """
    return (not pooled(facts)) | makes_gradients(facts, c)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmade:
    """The gradients that are not there as a block runs in the backward of the first micro-batch.

    Sharded ones come as units reduce, the root's at the end, and under a pipeline all of them.
    Arrays have moments before ranks before plans.
    """

    #: gradients as a block begins to run, of these its own, and those that are there once it has run
    left: Any
    running: Any
    copied: Any
    #: of one block of each kind; which are units, and how many of each a rank has
    own: Any
    units: tuple[bool, ...]
    repeats: Sequence[Any]
    moments: Moments
    #: of all, and where none comes before a step's end
    everything: Any
    late: Any
    #: where units reduce one by one, so that the last but one is the end: behind it none is gathered
    by_unit: Any
    #: bytes of a gradient where they come one by one, else 0
    each: Any
    #: bytes of whole gradients that wait for a step's end, as a block begins to run, and of its own;
    #: 0 where none do
    waiting: Any
    waiting_running: Any

    def at(self, when: When) -> Bytes:
        """Return the bytes at one of a block's repeats in backward."""
        left = self.left
        if when is When.COPIED:
            left = left - self.copied
        elif when is When.END:
            left = self._ended()
        return self.each * np.where(self.late, self.everything, np.maximum(left, 0))

    def waiting_at(self, when: When) -> Bytes:
        """Return the bytes of whole gradients that will wait for the end of a step, but do not yet."""
        if when is When.END:
            # those of the last repeat come as it runs
            return np.zeros_like(self.waiting)
        ran = self.waiting_running if when is When.COPIED else 0.0
        return np.maximum(self.waiting - ran, 0.0)

    def _ended(self) -> Any:
        """Return what is left as the last unit runs; blocks outside units that stand before it have not."""
        moments = self.moments
        units = sum(
            (count - moments.freed[:, kind]) * self.own[kind]
            for kind, count in enumerate(self.repeats)
            if self.units[kind]
        )
        of_unit = np.array(self.units)[moments.kinds][:, None, None]
        last = self.running * np.where(self.by_unit, 2, 1)
        return np.where(of_unit, np.minimum(self.left - units + last, self.left), self.left)


def unmade_of(facts: Facts, load: RankLoad, c: Columns, moments: Moments) -> Unmade:
    """Return the gradients that a first micro-batch does not find.

    Args:
        facts: the job.
        load: what a pipeline rank holds.
        c: the plans.
        moments: when blocks run backward, of each plan's ranks.
    """
    kinds, sharded = block_kinds(facts.model), gathers(c)
    everything, own = (_held(totals, c) for totals in (load.trainable, trainable_totals(kinds)))
    counted = own * (np.array(kinds.units)[:, None] | ~sharded)
    running = counted[moments.kinds][:, None]
    ran = np.einsum(RAN, moments.freed, counted)
    left = everything - ran
    if any(block.meanwhile for block in kinds.blocks):
        left = left - running * ~sharded * soonest(kinds)[moments.kinds][:, None]
    late, element = sharded & (c.pp > 1), element_bytes(facts)
    whole, of_kinds = (local_total(each, c) for each in (load.trainable, trainable_totals(kinds)))
    had = np.einsum(RAN, moments.freed, of_kinds)
    here = (makes_gradients(facts, c) | sharded) & (c.offload != code_of(Offload.PARAMETERS))
    return Unmade(
        left=left,
        running=running,
        copied=running * (sharded | _makes_all(kinds, load, moments)),
        own=own,
        units=kinds.units,
        repeats=load.repeats,
        moments=moments,
        everything=everything,
        late=late,
        by_unit=sharded & (c.pp == 1),
        each=element.gradient * here,
        waiting=element.reduce * late * (whole - had),
        waiting_running=element.reduce * late * of_kinds[moments.kinds][:, None],
    )


def _makes_all(kinds: Kinds, load: RankLoad, moments: Moments) -> Any:
    """Return where a block may hold most beside all gradients of one repeat: as the next repeat runs.

    Where none follows, and it is unknown what of its own gradients it makes meanwhile, those are all.
    """
    unknown = np.array([[block.meanwhile is None] for block in kinds.blocks])
    if unknown.all():
        return np.ones((), dtype=bool)
    left = [load.repeats[kind] - moments.freed[place, kind] for place, kind in enumerate(moments.kinds)]
    return (np.array(left) > 1) | unknown[moments.kinds][:, None]


def _held(totals: ParameterTotals, c: Columns) -> Any:
    return divided_over(local(totals, c), shard_ranks(c), gathers(c))


def lacking_bytes(unmade: Bytes, one: Bytes, held: Any, c: Columns) -> Bytes:
    """Return by how much less is held than with all gradients, at the moment of most.

    Later micro-batches find all but those that a pipeline reduces at the end of a step; where one fewer is
    in flight then, as under GPipe, either may hold most.

    Args:
        unmade: in the backward of the first micro-batch.
        one: what a micro-batch keeps.
        held: micro-batches in flight.
        c: the plans.
    """
    steps = c.gradient_accumulation_steps
    later = np.where(steps > held, 0.0, np.minimum(unmade, one))
    return np.where(steps == 1, unmade, np.where(gathers(c), unmade * (c.pp > 1), later))


def early(c: Columns, held: Any) -> Any:
    """Return where all micro-batches of a step are in flight as the first of them runs backward.

    Of pipelines whose gradients wait for the end of the step, which are not there yet.
    """
    return gathers(c) & (c.pp > 1) & (c.gradient_accumulation_steps <= held)


def early_bytes(waiting: Bytes, one: Bytes, held: Any, c: Columns) -> Bytes:
    """Return by how much less is held there than with all of these gradients.

    As the next one runs backward they are there, but one micro-batch fewer is in flight: either may be the
    moment of most.

    Args:
        waiting: of the gradients what is not there in the first backward.
        one: what a micro-batch keeps.
        held: micro-batches in flight.
        c: the plans.
    """
    less = np.where(c.gradient_accumulation_steps == 1, waiting, np.minimum(waiting, one))
    return np.where(early(c, held), less, 0.0)
