"""Parameters that FSDP2 has gathered while blocks run backward, and gradients that wait, DDP's among them.

A graph that gathers does so for each operator: a loss runs behind what is gathered for the forward and
before what is for backward, and an embedding's backward reads no table.
Sources: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; pytorch/torchtitan
torchtitan/experiments/graph_trainer/reshard_after_forward.py @fca8ab7.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, derived
from parastrat.plan import Shard
from parastrat.ranks.states import local_total, root_totals, unit_totals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import RankLoad
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.moments import Moments
    from parastrat.ranks.states import ElementBytes
    from parastrat.stack import Stack
    from parastrat.units import Bytes

#: what decides the states of a rank and what FSDP2 gathers of them
HELD_BY = (
    "pp",
    "virtual_stages",
    # where it bends the chain
    "pp_schedule",
    "dp_replicate",
    "dp_shard",
    "cp",
    "tp",
    "ep",
    "shard",
    "reshard_after_forward",
    "offload",
)


#: what blocks of each kind have, of those that ran before each moment, added up
RAN = "pkrn,kn->prn"

#: of a unit's gradients those that come late, where nobody knows
_UNKNOWN = 0.5


class When(Enum):
    """When in backward a block is looked at."""

    #: it begins to run
    FIRST = auto()
    #: it has run once, its gradients are copied, and the next repeat begins
    COPIED = auto()
    #: all have run, under a pipeline
    END = auto()


@derived
def shards_parameters(c: Columns) -> Any:
    """Return where a plan shards parameters."""
    return c.shard == code_of(Shard.PARAMETERS)


@derived
def gathers(c: Columns) -> Any:
    """Return where a plan shards parameters over several ranks: experts' over those of tp as well."""
    return shards_parameters(c) & (np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """FSDP2's gathered parameters and unsharded gradients while blocks run backward.

    The root unit stays gathered from forward until it reduces. With resharding two other units are
    gathered, the running one and the prefetched next; without, all that have not run yet. The running one's
    gradients exist in the compute format, and those of the unit before, copied, in the reduction's until
    the running one's are copied too. Those of the root's blocks stay until they are reduced at the end,
    when the first block has run and what it made is gone; at the loss there are none yet. Under a pipeline
    torch reduces once a step: gradients stay unsharded, and units stay gathered from their backward on
    (``torch.distributed.pipelining.stage``); with resharding each forward ends that, so that all are
    gathered only at the end of a micro-batch's backward.

    Arrays have moments before ranks before plans.
    """

    #: bytes of what is there however units reshard, and of an element that is gathered
    kept: Any
    compute: float
    #: parameters of units that are gathered with resharding, and without it; of the running one alone
    ahead: Any
    left: Any
    running: Any
    #: bytes of gradients that wait as a block begins to run, and as it has run once
    first: Any
    copied: Any
    #: where there is no pipeline, and where anything is gathered
    alone: Any
    gathers: Any

    def at(self, when: When, resharding: Any) -> Bytes:
        """Return the bytes at one of a block's repeats in backward; ``resharding`` is a plan's choice."""
        left, gradients = self.left, self.first
        if when is When.COPIED:
            left, gradients = left - self.alone * self.running, self.copied
        elif when is When.END:
            resharding, gradients = resharding & self.alone, self.copied
            # the last two units
            left = np.where(self.alone, np.minimum(left, 2 * self.running), left)
        return self._with(np.where(resharding, self.ahead, left), gradients)

    def least(self) -> Bytes:
        """Return the bytes as a block begins to run, whatever is chosen; pipelines keep units gathered."""
        whole = np.where(self.alone, np.minimum(self.ahead, self.left), self.left)
        return self._with(whole, self.first)

    def _with(self, whole: Any, gradients: Any) -> Bytes:
        return (self.kept + self.compute * whole + gradients) * self.gathers


def gathering_of(
    kinds: Kinds, load: RankLoad, c: Columns, element: ElementBytes, moments: Moments, stack: Stack
) -> Gathering:
    """Return what is gathered, whatever units reshard.

    Args:
        kinds: the model's kinds of block.
        load: what a pipeline rank holds.
        c: the plans.
        element: bytes of an element.
        moments: when blocks run backward, of each plan's ranks.
        stack: whose root there is, or none.
    """
    root, outside = local_total(load.root, c), local_total(root_totals(kinds), c)
    units = local_total(load.trainable, c) + local_total(load.frozen, c) - root
    if stack.gathers_in_graph:
        return _one_by_one(kinds, c, element, moments, (units, np.zeros_like(outside)))
    rooted = _around_root(kinds, c, element, moments, (units, root))
    if not stack.ends_apart:
        return rooted
    apart = _one_by_one(kinds, c, element, moments, (units, outside))
    changing = ("kept", "ahead", "left", "running", "first", "copied")
    ways = ((name, getattr(apart, name), getattr(rooted, name)) for name in changing)
    return replace(rooted, **{name: np.where(c.pp == 1, one, other) for name, one, other in ways})


def _around_root(
    kinds: Kinds, c: Columns, element: ElementBytes, moments: Moments, held: tuple[Any, Any]
) -> Gathering:
    """Return what is gathered where the blocks outside units are FSDP2's root.

    Args:
        kinds: the model's kinds of block.
        c: the plans.
        element: bytes of an element.
        moments: when blocks run backward, of each plan's ranks.
        held: a rank's parameters of units, and of the root.
    """
    in_units, root = held
    everything = in_units + root
    alone, units = c.pp == 1, unit_parameters(kinds, c)
    own, of_unit = units[moments.kinds][:, None], np.array(kinds.units)[moments.kinds][:, None, None]
    ended = ~of_unit & moments.last & ~moments.first
    reduced = np.where(of_unit, own, np.where(ended, root, 0.0))
    ran = _that_ran(kinds.units, units, moments)
    outside = [not unit for unit in kinds.units]
    of_root = _that_ran(outside, local_total(root_totals(kinds), c), moments)
    # the root is not gathered any more as its gradients are reduced
    gathered = np.where(alone & ended, 0.0, root) + reduced + np.where(of_unit & alone, of_root, 0.0)
    # the unit that runs backward next is prefetched; the first block has none behind it
    behind = np.concatenate([units, np.zeros_like(units[:1])])[moments.behind, np.arange(len(c.pp))]
    # the first unit of all finds no gradients of another
    found = np.where(of_unit & (ran == 0), 0.0, reduced)
    return Gathering(
        kept=element.compute * gathered,
        compute=element.compute,
        ahead=np.where(of_unit, 2 * own, behind),
        left=in_units - alone * ran,
        running=np.where(of_unit, own, 0.0),
        first=element.reduce * np.where(alone, found, everything),
        copied=element.reduce * np.where(alone, reduced, everything),
        alone=alone,
        gathers=gathers(c),
    )


def _one_by_one(
    kinds: Kinds, c: Columns, element: ElementBytes, moments: Moments, held: tuple[Any, Any]
) -> Gathering:
    """Return what is gathered where each block is for itself, and no root stays so.

    Of a unit that runs its own and the next are there; gradients are reduced as they are made. A head holds
    most at its loss, when it has no gradients of weights yet.

    Args:
        kinds: the model's kinds of block.
        c: the plans.
        element: bytes of an element.
        moments: when blocks run backward, of each plan's ranks.
        held: a rank's parameters of units, and those of each kind of block outside units that are gathered
            as it holds most.
    """
    units, stays = held
    each, outside = unit_parameters(kinds, c), local_total(root_totals(kinds), c)
    own, ran = each[moments.kinds][:, None], _that_ran(kinds.units, each, moments)
    made = own + np.where(moments.first, 0.0, outside[moments.kinds][:, None])
    found = np.where((own > 0) & (ran == 0), 0.0, made)
    return Gathering(
        kept=element.compute * (made + stays[moments.kinds][:, None]),
        compute=element.compute,
        ahead=2 * own,
        left=units - ran,
        running=own,
        first=element.reduce * found,
        copied=element.reduce * made,
        alone=c.pp == 1,
        gathers=gathers(c),
    )


def reducing_bytes(
    kinds: Kinds, c: Columns, element: ElementBytes, moments: Moments
) -> tuple[Bytes, Bytes]:
    """Return the gradients that the running unit makes after it holds most, and after its halfway moment.

    In the compute format; ``Gathering`` counts all of them. Half where the first is unknown.
    """
    known = [block.meanwhile for block in kinds.blocks]
    late = [_UNKNOWN if share is None else 1 - share for share in known]
    later = [1.0 if block.halfway is None else 1 - block.halfway.meanwhile for block in kinds.blocks]
    units = np.array(kinds.units)[:, None] * unit_parameters(kinds, c)
    whole = element.compute * units * gathers(c)
    first, second = ((np.array(share)[:, None] * whole)[moments.kinds][:, None] for share in (late, later))
    return first, second


def never_met_bytes(late: Bytes, later: Bytes, freed: Bytes, read: Bytes) -> Bytes:
    """Return what a unit's gradients and what its backward reads are less than both, where they are most.

    The ones come while the other goes. Most is there as it begins, halfway, or when all gradients are.

    Args:
        late: gradients that come after the first of these moments; none where no unit is gathered.
        later: that come after the second.
        freed: what is gone by then; below 0 where more is there.
        read: by its backward.
    """
    return np.where(late > 0, np.minimum(np.minimum(late, later + freed), read), 0.0)


def _that_ran(chosen: Sequence[bool], parameters: Any, moments: Moments) -> Any:
    """Return the parameters of the chosen kinds' blocks that ran backward before each moment."""
    wanted = np.flatnonzero(chosen)
    return np.einsum(RAN, moments.freed[:, wanted], parameters[wanted])


def waiting_bytes(facts: Facts, load: RankLoad, c: Columns, element: ElementBytes) -> Bytes:
    """Return what gradients take beside those that stay, where a micro-batch follows another.

    FSDP2 lets go of a unit's whole gradients when the next unit reduces, and waits for the last one, the
    root's, only in the last backward (``set_is_last_backward``). torch's DDP, which pipelines do without,
    accumulates beside its buckets (``no_sync``) and copies into them in the last backward
    (torch/csrc/distributed/c10d/reducer.cpp, ``copy_bucket_with_grad``); Megatron's accumulates in them.
    """
    root = np.where(gathers(c) & (c.pp == 1), element.reduce * local_total(load.root, c), 0)
    if facts.stack.kernels.fused:
        return root
    beside = (c.dp > 1) & (c.pp == 1) & (c.shard == code_of(Shard.NONE))
    return root + np.where(beside, element.gradient * local_total(load.trainable, c), 0)


def unit_parameters(kinds: Kinds, c: Columns) -> Any:
    """Return the parameters of one repeat of each kind of unit on a rank; none of blocks outside units."""
    return local_total(unit_totals(kinds), c)
