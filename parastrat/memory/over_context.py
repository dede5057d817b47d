"""What the ranks of a sequence hold of each other's keys and values, and of their gradients.

Attention gathers them as a block runs forward, and again as it runs backward, where a rank kept its own
alone; a block that is made again holds them from then on. Positions are divided from the first block on, up
to the head (``parastrat.runtime.context_parallel``).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.elementwise import larger, smaller, where
from parastrat.memory.kinds import shared_bytes
from parastrat.plan import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.kinds import Attending, Kind, Shares
    from parastrat.memory.plans import Plans
    from parastrat.units import Bytes, Numbers

_ATTENTION_AGAIN = code_of(Recompute.ATTENTION)


def attending_of(plans: Plans, kind: Kind) -> Attending | None:
    """Return a kind of block's attention, or that of all kinds, where some plans gather keys and values."""
    return None if plans.over_context is False else kind.attending


def more_kept(plans: Plans, attending: Attending) -> tuple[Bytes, Bytes]:
    """Return what a block keeps more than without other ranks, and what more its backward reads.

    That is attention's output put together, and where the block is made again what it then holds of the
    keys and values of others.
    """
    over, policy, shares = plans.over_context, plans.policy, plans.shares
    joined = shared_bytes(attending.joined, shares)
    others = where(
        policy > _ATTENTION_AGAIN, (plans.c.cp - 1) * shared_bytes(attending.gathered, shares), 0.0
    )
    return where(over & (policy < _ATTENTION_AGAIN), joined, 0.0), where(over, joined + others, 0.0)


def joined_bytes(plans: Plans, kind: Kind) -> Bytes:
    """Return attention's output put together, which is gone behind the projection that reads it."""
    attending = attending_of(plans, kind)
    if attending is None:
        return 0.0
    return where(plans.over_context, shared_bytes(attending.joined, plans.shares), 0.0)


def freed_attending(plans: Plans, attending: Attending) -> Bytes:
    """Return what is gone as attention runs backward, less what it gathers and makes of that."""
    shares, cp = plans.shares, plans.c.cp
    made = reduce(
        larger,
        (cp * shared_bytes(every, shares) + shared_bytes(own, shares) for every, own in attending.moments),
    )
    # of a block that is made again what is gathered is among what it reads, in place of its own
    there = where(plans.policy > _ATTENTION_AGAIN, cp * shared_bytes(attending.gathered, shares), 0.0)
    return shared_bytes(attending.freed, shares) + shared_bytes(attending.joined, shares) - made + there


def shares_at(plans: Plans, kind: Kind) -> Shares:
    """Return the samples whose bytes a rank has of a kind of block.

    With several ranks to a sequence tp divides the positions of each between the first unit and the last
    alone.
    """
    if plans.over_context is False:
        return plans.shares
    shares, outside = plans.shares, plans.over_context & (kind.of_unit == 0)
    return shares._replace(sequence=where(outside, shares.replicated, shares.sequence))


def between_bytes(plans: Plans, kind: Kind) -> tuple[Bytes, Bytes]:
    """Return what a head holds of other ranks' positions, and of all while its forward runs.

    That is the input of a norm before it, and its output up to the end of a loss that ranks compute
    together, of a model whose code counts positions there.
    """
    if kind.between is None or plans.over_context is False:
        return 0.0, 0.0
    own, cp = shared_bytes(kind.between, plans.shares), plans.c.cp
    ends = plans.over_context & (plans.c.loss_parallel == 1)
    return where(plans.over_context, (cp - 1) * own, 0.0), where(ends, cp * own, 0.0)


def met_attending(
    plans: Plans, kind: Kind, made_at: Sequence[Bytes], never: Bytes, whole: Numbers
) -> Bytes:
    """Return what of a unit is never there beside the rest, where attention may be its moment of most.

    Args:
        plans: the plans.
        kind: of the block.
        made_at: what exists beside what it reads, at its moments.
        never: what is never there of it at others.
        whole: its gradients in the compute format.
    """
    attending = attending_of(plans, kind)
    if attending is None:
        return never
    begun = reduce(larger, made_at) - made_at[0]
    then = begun + freed_attending(plans, attending) + attending.late * whole
    attends = plans.over_context & (attending.late * whole > 0)
    return where(attends, smaller(never, then), never)
