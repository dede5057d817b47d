"""Parameters that FSDP2 has gathered while blocks run backward, and gradients that wait, DDP's among them.

A graph that gathers does so for each operator: a loss runs behind what is gathered for the forward and
before what is for backward, and an embedding's backward reads no table.
Sources: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html; pytorch/torchtitan
torchtitan/experiments/graph_trainer/reshard_after_forward.py @fca8ab7.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, derived
from parastrat.elementwise import larger, of_kinds, smaller, taken, where
from parastrat.memory.plans import in_parallel
from parastrat.plan import Shard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.columns import Columns
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.held import RankHeld
    from parastrat.memory.plans import Plans
    from parastrat.ranks.starts import Start
    from parastrat.units import Bytes, Mask, Numbers


class When(Enum):
    """When in backward a block is looked at."""

    #: it begins to run
    FIRST = auto()
    #: it has run once, its gradients are copied, and the next repeat begins
    COPIED = auto()
    #: all have run, under a pipeline
    END = auto()


FIRST, COPIED, END = When.FIRST, When.COPIED, When.END
#: in what ways a block's repeats are looked at
ONCE, ENDS, EVERY_WAY = (FIRST,), (FIRST, END), (FIRST, COPIED, END)


def by_way(ways: Sequence[When], first: Bytes, copied: Bytes, end: Bytes) -> Sequence[Bytes]:
    """Return what there is in some of the ways."""
    if ways is ONCE:
        return (first,)
    if ways is ENDS:
        return first, end
    if ways is EVERY_WAY:
        return first, copied, end
    return tuple(first if when is FIRST else copied if when is COPIED else end for when in ways)


def of_way(several: Sequence[Bytes] | None, way: Any) -> Sequence[Bytes] | None:
    """Return of each element what there is in its way, told by its place among the ways."""
    if several is None:
        return None
    found, *others = several
    for place, other in enumerate(others, 1):
        found = np.where(way == place, other, found)
    return (found,)


@derived
def shards_parameters(c: Columns) -> Any:
    """Return where a plan shards parameters."""
    return c.shard == code_of(Shard.PARAMETERS)


def gathered_bytes(
    plans: Plans, kinds: KindBytes, rank: RankHeld, start: Start, ways: Sequence[When]
) -> Sequence[Bytes]:
    """Return FSDP2's gathered parameters and unsharded gradients while a block runs backward, in some ways.

    The root unit stays gathered from forward until it reduces. With resharding two other units are
    gathered, the running one and the prefetched next; without, all that have not run yet. The running one's
    gradients exist in the compute format, and those of the unit before, copied, in the reduction's until
    the running one's are copied too. Experts that are units of their own run backward inside of their
    block's: the unit prefetched next, and that before, are the rest of another block (``memory.unmet``).
    Gradients of the root's blocks stay until they are reduced at the end, when the first block has run and
    what it made is gone; at the loss there are none yet. Under a pipeline torch reduces once a step:
    gradients stay unsharded, and units stay gathered from their backward on
    (``torch.distributed.pipelining.stage``); with resharding each forward ends that, so that all are
    gathered only at the end of a micro-batch's backward.

    Args:
        plans: that gather parameters.
        kinds: bytes of one repeat of each kind of block.
        rank: what the block's rank holds.
        start: the block.
        ways: the repeats that are looked at.
    """
    piped, stack = rank.alike.piped, plans.job.stack
    if stack.gathers_in_graph:
        return _one_by_one(plans, kinds, rank, start, ways)
    if piped is True:
        return _under_pipelines(plans, kinds, rank, start, ways)
    alone = (_one_by_one if stack.ends_apart else _unit_by_unit)(plans, kinds, rank, start, ways)
    if piped is False:
        return alone
    several = zip(_under_pipelines(plans, kinds, rank, start, ways), alone, strict=True)
    return [where(piped, own, other) for own, other in several]


def _under_pipelines(
    plans: Plans, kinds: KindBytes, rank: RankHeld, start: Start, ways: Sequence[When]
) -> Sequence[Bytes]:
    """Return what is gathered where gradients are reduced once a step."""
    element, root, own = plans.job.element, rank.root, kinds.unit[start.place]
    held = _beside(kinds, root + own, start)
    if start.ended is not False:
        held = held + root * start.ended
    kept = element.compute * held + element.reduce * rank.everything
    running = every = kept + element.compute * (rank.everything - root)
    # of plans that may reshard or not pipelines keep units gathered
    reshards = False if plans.reshards is None else taken(plans.reshards, start.rows)
    if reshards is not False:
        running = where(reshards, kept + element.compute * _ahead(kinds, own, start), every)
    copied = running
    if rank.alike.splits is not False:
        left = rank.uncast - of_kinds(kinds.unit, start.freed, start.rows)
        running = running + element.compute * larger(left, 0.0)
        copied = copied + element.compute * larger(left - own, 0.0)
    return by_way(ways, running, copied, every)


def _beside(kinds: KindBytes, held: Numbers, start: Start) -> Numbers:
    """Return parameters beside the root's gradients, which are there of its blocks as a unit runs."""
    if start.of_unit is False:
        return held
    return held + of_kinds(kinds.root, start.freed, start.rows) * start.of_unit


def _ahead(kinds: KindBytes, own: Numbers, start: Start, experts: Numbers = 0.0) -> Numbers:
    """Return the units that are gathered with resharding; of the first block there is none behind it."""
    ahead = 2 * own - experts
    if start.follows is False:
        return ahead
    return ahead + (kinds.unit[start.behind] - kinds.experts[start.behind]) * start.follows


def _gathered_last(plans: Plans, kinds: KindBytes, start: Start) -> Numbers:
    """Return by how much more is gathered beside a loss in the forward than beside its backward.

    Experts are gathered behind the rest of their block, which is prefetched for backward; what a forward
    gathered last stays until it ends. A loss in parallel has most in its forward, another in its backward.
    """
    unit, experts = kinds.unit[start.behind], kinds.experts[start.behind]
    return where(_ends_forward(plans, start) & (experts > 0), 2 * experts - unit, 0.0)


def _copied_out_of(plans: Plans, kinds: KindBytes, start: Start) -> Numbers:
    """Return what a forward gathered last as it came, beside a loss that has most in that forward.

    It was copied out, and is let go of as another unit is or as the forward ends
    (torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, ``AllGatherState``). With resharding as much
    is prefetched for backward; without, nothing is.
    """
    ends = _ends_forward(plans, start)
    if ends is False:
        return 0.0
    unit, experts = kinds.unit[start.behind], kinds.experts[start.behind]
    return where(ends, where(experts > 0, experts, unit), 0.0)


def _ends_forward(plans: Plans, start: Start) -> Mask:
    """Return where a loss in parallel runs behind a unit: it has most in its forward."""
    if start.first is False or start.follows is False:
        return False
    meets: Mask = start.first & start.follows & taken(in_parallel(plans.c, plans.division), start.rows)
    return meets


def _unit_by_unit(
    plans: Plans, kinds: KindBytes, rank: RankHeld, start: Start, ways: Sequence[When]
) -> Sequence[Bytes]:
    """Return what is gathered where there is no pipeline."""
    element, unit, root, rows = plans.job.element, kinds.unit, rank.root, start.rows
    compute, reshards, place = element.compute, plans.reshards, start.place
    if rows is not None:
        reshards = taken(reshards, rows)
    # of what is no unit 0
    own, experts = unit[place], kinds.experts[place]
    ahead = _ahead(kinds, own, start, experts)
    if plans.apart is not False:
        ahead = ahead + _gathered_last(plans, kinds, start)
    # the root is not gathered any more as its gradients are reduced
    kept = compute * _beside(kinds, root + own, start)
    if reshards is True:
        first = copied = end = kept + compute * ahead
    else:
        left = rank.everything - root - of_kinds(unit, start.freed, rows)
        first = kept + compute * _left(reshards, ahead, left)
        if reshards is not None:
            first = first + compute * where(reshards, 0.0, _copied_out_of(plans, kinds, start))
        copied = kept + compute * _left(reshards, ahead, left - own)
        # the last two units
        end = kept + compute * _left(reshards, ahead, smaller(left, 2 * own))
    reduced = own - experts
    if start.ended is not False:
        reduced = reduced + root * start.ended
    gradients = element.reduce * reduced
    return by_way(
        ways,
        # the first unit of all finds no gradients of another
        first + _found(plans, kinds, gradients, start),
        copied + gradients,
        end + gradients,
    )


def _one_by_one(
    plans: Plans, kinds: KindBytes, rank: RankHeld, start: Start, ways: Sequence[When]
) -> Sequence[Bytes]:
    """Return what is gathered where each block is for itself, and no root stays so.

    Of a unit that runs its own and the next are there; gradients are reduced as they are made. A head holds
    most at its loss, when it has no gradients of weights yet; of a block that FSDP2 gathers its parameters
    are there as it holds most.
    """
    element, unit, piped, rows = plans.job.element, kinds.unit, rank.alike.piped, start.rows
    # of what is no unit 0, and of what is one
    own, outside = unit[start.place], kinds.root[start.place]
    experts = kinds.experts[start.place]
    ahead = 2 * own - experts
    left = rank.everything - rank.root - of_kinds(unit, start.freed, rows)
    made = own + where(start.first, 0.0, outside)
    stays = 0.0 if plans.job.stack.gathers_in_graph else outside
    kept, gradients = element.compute * (made + stays), element.reduce * (made - experts)
    # the first unit of all finds no gradients of another
    found = _found(plans, kinds, gradients, start)
    if plans.reshards is None:
        # a pipeline keeps units gathered, as it does from their backward on
        return (kept + element.compute * where(piped, left, smaller(ahead, left)) + found,)
    reshards = taken(plans.reshards, rows)
    ran, last = where(piped, left, left - own), where(piped, left, smaller(left, 2 * own))
    resharded = where(piped, left, ahead)
    return by_way(
        ways,
        kept + element.compute * where(reshards, ahead, left) + found,
        kept + element.compute * where(reshards, ahead, ran) + gradients,
        kept + element.compute * where(reshards, resharded, last) + gradients,
    )


def _found(plans: Plans, kinds: KindBytes, gradients: Bytes, start: Start) -> Bytes:
    """Return the gradients of the unit before, beside which a block begins to run, if there are any."""
    found = gradients * start.finds
    if plans.apart is False:
        return found
    return found + where(start.finds, 0.0, kinds.beside_others[start.place])


def _left(reshards: Mask | None, ahead: Numbers, left: Numbers) -> Numbers:
    """Return the parameters of units that are gathered; the fewest of a plan that may reshard or not."""
    return smaller(ahead, left) if reshards is None else where(reshards, ahead, left)
