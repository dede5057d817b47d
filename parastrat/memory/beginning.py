"""What FSDP2 holds as a micro-batch's forward begins beside what waits of the one before.

The root's gradients wait for the last backward. Its parameters are copied out of what was gathered, which
is kept until those of the first unit are copied out of theirs: both are there twice. Where what is freed
stays with the stream that gathered it, those buffers take the place of memory that is idle else, and
backward holds more: such plans do not peak here.
Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``wait_for_unshard``) of torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parastrat.elementwise import larger, where

if TYPE_CHECKING:
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.alike import Alike
    from parastrat.memory.plans import Plans
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.states import States
    from parastrat.units import Bytes, Numbers

#: what is gathered is there as it came, and copied out
_COPIES = 2


class Beginning(NamedTuple):
    """What a rank holds then, bytes; 0 of plans that have no such moment."""

    total: Bytes
    transient: Bytes
    #: what an allocator holds and nothing uses
    idle: Bytes


class Waits(NamedTuple):
    """What a rank holds as a forward begins."""

    alike: Alike
    states: States
    pool: Bytes
    root: Numbers
    #: gradients of the micro-batch before
    waiting: Bytes


def beginning_of(plans: Plans, kinds: KindBytes, rank: Rank, held: Waits) -> Beginning | None:
    """Return what a rank holds as the first unit is gathered; None where no plan has such a moment."""
    job, alike = plans.job, held.alike
    units = [place for place in job.pipelines.kinds.of if place in job.units]
    if job.rootless or alike.waits is False or alike.gathers is False or not units:
        return None
    first = kinds.unit, kinds.experts
    unit, experts = (
        each[units[0]] if rank.rows is None else each.at(units[0], rank.rows) for each in first
    )
    gathered = job.element.compute * (held.root + unit - experts)
    idle, transient = larger(held.pool - gathered, 0.0), _COPIES * gathered + held.waiting
    total = job.context + job.buffers + held.states.kept + idle + job.share * transient
    waits = alike.gathers & (held.waiting > 0)
    return Beginning(where(waits, total, 0.0), where(waits, transient, 0.0), where(waits, idle, 0.0))
