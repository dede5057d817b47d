"""Parameters that FSDP2 has gathered while blocks run backward, and gradients that wait, DDP's among them.

Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.plan import Shard
from parastrat.ranks.states import local, root_totals, unit_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import RankLoad
    from parastrat.ranks.moments import Moments
    from parastrat.ranks.pipelines import Kinds
    from parastrat.ranks.states import ElementBytes
    from parastrat.units import Bytes

#: what decides the states of a rank and what FSDP2 gathers of them
HELD_BY = (
    "pp",
    "virtual_stages",
    "dp_replicate",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "shard",
    "reshard_after_forward",
    "offload",
)


class When(Enum):
    """When in backward a block is looked at."""

    #: it begins to run
    FIRST = auto()
    #: it has run once, its gradients are copied, and the next repeat begins
    COPIED = auto()
    #: all have run, under a pipeline
    END = auto()


def shards_parameters(c: Columns) -> Any:
    """Return where a plan shards parameters."""
    return c.shard == code_of(Shard.PARAMETERS)


def gathers(c: Columns) -> Any:
    """Return where a plan shards parameters over several ranks: experts' over those of tp as well."""
    return shards_parameters(c) & (np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1)


def gathered_bytes(
    kinds: Kinds,
    load: RankLoad,
    c: Columns,
    element: ElementBytes,
    moments: Moments,
    when: When = When.FIRST,
) -> Bytes:
    """Return FSDP2's gathered parameters and unsharded gradients while a block runs.

    The root unit stays gathered from forward until it reduces. With resharding two other units are
    gathered, the running one and the prefetched next; without, all that have not run yet. The running one's
    gradients exist in the compute format, and those of the unit before, copied, in the reduction's until
    the running one's are copied too. Those of the root's blocks stay until they are reduced at the end,
    when the first block has run and what it made is gone; at the loss there are none yet. Under a pipeline
    torch reduces once a step: gradients stay unsharded, and units stay gathered from their backward on
    (``torch.distributed.pipelining.stage``); with resharding each forward ends that, so that all are
    gathered only at the end of a micro-batch's backward.

    Args:
        kinds: the model's kinds of block.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
        moments: when blocks run backward, of each plan's ranks.
        when: of a block's repeats in backward.

    Returns:
        Bytes with moments before ranks before plans.
    """
    everything = sum(local(load.trainable, c)) + sum(local(load.frozen, c))
    root = sum(local(load.root, c))
    alone = c.pp == 1
    resharded = c.reshard_after_forward & (alone | (when is not When.END))
    units = unit_parameters(kinds, c)
    own, of_unit = units[moments.kinds][:, None], np.array(kinds.units)[moments.kinds][:, None, None]
    # the unit that runs backward next is prefetched; the first block has none behind it
    behind = np.concatenate([units, np.zeros_like(units[:1])])[moments.behind, np.arange(len(c.pp))]
    ahead = np.where(of_unit, 2 * own, behind)
    reduced = np.where(of_unit, own, np.where(moments.last & ~moments.first, root, 0.0))
    ran = _that_ran(kinds.units, units, moments) + own * (of_unit & (when is When.COPIED))
    whole = np.where(resharded, ahead, everything - root - alone * ran)
    # the first unit of all finds no gradients of another
    copies = np.where(of_unit & (ran == 0), 0.0, reduced)
    outside = [not unit for unit in kinds.units]
    of_root = _that_ran(outside, sum(local(root_totals(kinds), c)), moments)
    gradients = element.reduce * np.where(alone, copies, everything)
    gradients = gradients + element.compute * np.where(of_unit & alone, of_root, 0.0)
    # the root is not gathered any more as its gradients are reduced
    resharding = alone & ~of_unit & moments.last & ~moments.first
    gathered = element.compute * (np.where(resharding, 0.0, root) + whole + reduced) + gradients
    return gathered * gathers(c)


def reducing_bytes(kinds: Kinds, c: Columns, element: ElementBytes, moments: Moments) -> Bytes:
    """Return the running unit's gradients in the compute format, which ``gathered_bytes`` counts whole."""
    units = np.array(kinds.units)[:, None] * unit_parameters(kinds, c)
    return (element.compute * units * gathers(c))[moments.kinds][:, None]


def never_met_bytes(gradients: Bytes, read: Bytes) -> Bytes:
    """Return what a unit's gradients and what its backward reads are less than both, where they are most.

    The ones come while the other goes. If that were even, it would be the lesser of them, and nothing if
    all gradients came first; in dry runs of Llamas it is about half of it.
    """
    return np.minimum(gradients, read) / 2


def _that_ran(chosen: Sequence[bool], parameters: Any, moments: Moments) -> Any:
    """Return the parameters of the chosen kinds' blocks that ran backward before each moment."""
    found: Any = np.zeros(())
    for kind, wanted in enumerate(chosen):
        if wanted:
            found = found + moments.freed[:, kind] * parameters[kind]
    return found


def waiting_bytes(facts: Facts, load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return what gradients take beside those that stay, where a micro-batch follows another.

    FSDP2 lets go of a unit's whole gradients when the next unit reduces, and waits for the last one, the
    root's, only in the last backward (``set_is_last_backward``). torch's DDP, which pipelines do without,
    accumulates beside its buckets (``no_sync``) and copies into them in the last backward
    (torch/csrc/distributed/c10d/reducer.cpp, ``copy_bucket_with_grad``); Megatron's accumulates in them.
    """
    root = np.where(gathers(c) & (c.pp == 1), element.reduce * sum(local(load.root, c)), 0)
    if facts.stack.kernels.fused:
        return root
    beside = (c.dp > 1) & (c.pp == 1) & (c.shard == code_of(Shard.NONE))
    return root + np.where(beside, element.gradient * sum(local(load.trainable, c)), 0)


def unit_parameters(kinds: Kinds, c: Columns) -> Any:
    """Return the parameters of one repeat of each kind of unit on a rank; none of blocks outside units."""
    return sum(local(unit_totals(kinds), c))
