"""Gradients that backward has not made yet, where each step makes them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.memory.gathered import When, gathers
from parastrat.plan import Offload, Shard
from parastrat.ranks import block_kinds
from parastrat.ranks.states import element_bytes, local, shard_ranks, trainable_totals

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import ParameterTotals, RankLoad
    from parastrat.ranks.moments import Moments
    from parastrat.ranks.pipelines import Kinds
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


def unmade_bytes(facts: Facts, load: RankLoad, c: Columns, moments: Moments, when: When) -> Bytes:
    """Return the gradients that are not there as a block runs in the backward of the first micro-batch.

    Sharded ones come as units reduce, the root's at the end, and under a pipeline all of them.

    Args:
        facts: the job.
        load: what a pipeline rank holds.
        c: the plans.
        moments: when blocks run backward, of each plan's ranks.
        when: of a block's repeats in backward.

    Returns:
        Bytes with moments before ranks before plans.
    """
    kinds, sharded = block_kinds(facts.model), gathers(c)
    everything, own = (_held(totals, c) for totals in (load.trainable, trainable_totals(kinds)))
    counts = np.array(kinds.units)[:, None] | ~sharded
    of_unit = np.array(kinds.units)[moments.kinds][:, None, None]
    running = (own * counts)[moments.kinds][:, None]
    ran = sum((moments.freed[:, kind] * each for kind, each in enumerate(own * counts)), np.zeros(()))
    left = everything - ran
    if when is When.COPIED:
        left = left - running * (sharded | _makes_all(kinds, load, moments))
    elif when is When.END:
        # the last of the units runs, and blocks outside units that stand before it have not
        units = sum(
            (count - moments.freed[:, kind]) * own[kind]
            for kind, count in enumerate(load.repeats)
            if kinds.units[kind]
        )
        left = np.where(of_unit, left - units + running, left)
    if any(block.meanwhile for block in kinds.blocks):
        left = left - running * ~sharded * _soon(kinds)[moments.kinds][:, None]
    left = np.where(sharded & (c.pp > 1), everything, np.maximum(left, 0))
    here = (makes_gradients(facts, c) | sharded) & (c.offload != code_of(Offload.PARAMETERS))
    return element_bytes(facts).gradient * np.where(here, left, 0.0)


def _soon(kinds: Kinds) -> Any:
    """Return of each kind of block the share of its gradients that is there before it holds most."""
    return np.array([[block.meanwhile or 0.0] for block in kinds.blocks])


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
    sharded, parts = gathers(c), zip(local(totals, c), shard_ranks(c), strict=True)
    return sum(part / np.where(sharded, over, 1) for part, over in parts)


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
