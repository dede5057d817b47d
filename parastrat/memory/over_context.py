"""What the ranks of a sequence hold of each other's keys and values, and of their gradients.

Attention gathers them as a block runs forward, and again as it runs backward, where a rank kept its own
alone; a block that is made again holds them from then on. Positions are divided from the first block on, up
to the head (``parastrat.runtime.context_parallel``).
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from parastrat.columns import code_of
from parastrat.elementwise import larger, smaller, where
from parastrat.memory.kinds import shared_bytes
from parastrat.memory.masks import rows_of_masks
from parastrat.plan import Recompute

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.kinds import Kind, Shared, Shares
    from parastrat.memory.plans import Plans
    from parastrat.units import Bytes, Numbers

_ATTENTION_AGAIN = code_of(Recompute.ATTENTION)


class OverContext(NamedTuple):
    """What ranks of a sequence add to one repeat of a kind of block, bytes."""

    #: to what it keeps, and to what its backward reads
    kept: Bytes
    read: Bytes
    #: of that its output put together, which is gone behind the projection that reads it
    joined: Bytes
    #: what is gone as attention runs backward, less what it gathers and makes of that
    freed: Bytes
    #: the share of its parameters' gradients that comes later
    late: Numbers


def of_ranks(plans: Plans, kind: Kind) -> tuple[Shares, OverContext | None, tuple[Bytes, Bytes]]:
    """Return what a kind of block, or all kinds, have where ranks have the positions of a sequence.

    The samples whose bytes a rank has, what comes to attention, and before a head or with masks.
    """
    others, ending = _between_bytes(plans, kind)
    others = others + rows_of_masks(plans, kind)
    return _shares_at(plans, kind), _over_context(plans, kind), (others, ending)


def _over_context(plans: Plans, kind: Kind) -> OverContext | None:
    """Return what ranks of a sequence add to attention, where there is any.

    Its output is put together of several. A block that is made again holds the keys and values of others as
    well, in place of its own.
    """
    own, over = kind.attending, plans.over_context
    if own is None:
        return None
    shares, policy, cp = plans.shares, plans.policy, plans.c.cp
    every = shares._replace(replicated=cp * shares.replicated, tensor=cp * shares.tensor)
    joined = _of_heads(own.joined, shares)
    made = reduce(
        larger, (_of_heads(whole, every) + _of_heads(part, shares) for whole, part in own.moments)
    )
    freed = shared_bytes(own.freed, shares) + joined - made
    read = joined
    if plans.again:
        again, gathered = policy > _ATTENTION_AGAIN, _of_heads(own.gathered, shares)
        read = read + where(again, (cp - 1) * gathered, 0.0)
        freed = freed + where(again, cp * gathered, 0.0)
    if over is not True:
        joined, read = where(over, joined, 0.0), where(over, read, 0.0)
    return OverContext(where(policy < _ATTENTION_AGAIN, joined, 0.0), read, joined, freed, own.late)


def _of_heads(heads: Shared | None, of: Shares) -> Bytes:
    """Return the bytes of what tp divides by heads, or of all heads on each of its ranks."""
    if heads is None:
        return 0.0
    return heads.replicated * of.replicated if heads.tensor is None else heads.tensor * of.tensor


def _shares_at(plans: Plans, kind: Kind) -> Shares:
    """Return the samples whose bytes a rank has of a kind of block.

    With several ranks to a sequence tp divides the positions of each between the first unit and the last
    alone.
    """
    shares, outside = plans.shares, plans.over_context & (kind.of_unit == 0)
    return shares._replace(sequence=where(outside, shares.replicated, shares.sequence))


def _between_bytes(plans: Plans, kind: Kind) -> tuple[Bytes, Bytes]:
    """Return what a head holds of other ranks' positions, and of all while its forward runs.

    That is the input of a norm before it, and its output up to the end of a loss that ranks compute
    together, of a model whose code counts positions there.
    """
    if kind.between is None:
        return 0.0, 0.0
    own, cp = shared_bytes(kind.between, plans.shares), plans.c.cp
    ends = plans.over_context & (plans.c.loss_parallel == 1)
    return where(plans.over_context, (cp - 1) * own, 0.0), where(ends, cp * own, 0.0)


def met_attending(
    plans: Plans, added: OverContext | None, made_at: Sequence[Bytes], never: Bytes, whole: Numbers
) -> Bytes:
    """Return what of a unit is never there beside the rest, where attention may be its moment of most.

    Args:
        plans: the plans.
        added: to the block by other ranks.
        made_at: what exists beside what it reads, at its moments.
        never: what is never there of it at others.
        whole: its gradients in the compute format.
    """
    if added is None:
        return never
    late, begun = added.late * whole, made_at[0]
    if len(made_at) > 1:
        late = late + reduce(larger, made_at) - begun
    # what is not gathered has nothing that is never there
    attends = plans.over_context & (added.late > 0) & (whole > 0)
    return where(attends, smaller(never, added.freed + late), never)
