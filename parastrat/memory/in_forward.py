"""What FSDP2 holds as a forward gathers a unit, beside what waits of the micro-batch before.

A unit's parameters are copied out of what was gathered, and that is kept until those of the next unit are
copied out of theirs: as a unit is copied its parameters are there twice, and the unit's before, if it
reshards not, twice as well. Stacks of experts that are sharded along their rows come through a third copy.
Two units are looked at: the first, as the root's gradients wait for the last backward, and the last where
none reshards, as of it nothing has run. Where what is freed stays with the stream that gathered it, those
buffers take the place of memory that is idle else, and backward holds more: such plans do not peak here.
Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``wait_for_unshard``) and
_fsdp_collectives.py (``foreach_all_gather_copy_out``) of torch 2.13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from parastrat.columns import code_of
from parastrat.elementwise import larger, of_kinds, taken, where
from parastrat.plan import Recompute
from parastrat.ranks.division import along_rows, divided_experts
from parastrat.ranks.load import has_any

if TYPE_CHECKING:
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.alike import Alike
    from parastrat.memory.plans import Plans
    from parastrat.ranks.division import Division
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.states import States
    from parastrat.units import Bytes, Mask, Numbers

#: what is gathered is there as it came, and copied out
_COPIES = 2
_MADE_AGAIN = code_of(Recompute.FULL)


class InForward(NamedTuple):
    """What a rank holds at such a moment, bytes; 0 of plans that have none."""

    total: Bytes
    #: of sharded gradients those that are there
    gradients: Bytes
    activations: Bytes
    transient: Bytes
    #: what an allocator holds and nothing uses
    idle: Bytes


class Waits(NamedTuple):
    """What a rank holds whatever a forward gathers."""

    alike: Alike
    division: Division
    states: States
    steps: Numbers
    pool: Bytes
    #: parameters that it gathers, and of these the root's
    everything: Numbers
    root: Numbers
    #: what a micro-batch keeps
    one: Bytes
    #: gradients of the micro-batch before
    waiting: Bytes


def in_forward(plans: Plans, kinds: KindBytes, rank: Rank, held: Waits) -> tuple[InForward, ...]:
    """Return what a rank holds as the first unit is gathered, and the last; nothing where no plan does."""
    job, alike = plans.job, held.alike
    chain = job.pipelines.kinds.of
    units = [place for place, kind in enumerate(chain) if kind in job.units]
    if job.rootless or alike.waits is False or alike.gathers is False or not units:
        return ()
    found = [_first(plans, kinds, rank, held, chain[units[0]])]
    if plans.reshards is not None and plans.reshards is not True:
        found.append(_last(plans, kinds, rank, held, units))
    return tuple(found)


def _first(plans: Plans, kinds: KindBytes, rank: Rank, held: Waits, kind: int) -> InForward:
    unit, experts = (_of(each, rank, kind) for each in (kinds.unit, kinds.experts))
    gathered = plans.job.element.compute * (held.root + unit - experts)
    waits = held.alike.gathers & (held.waiting > 0)
    return _moment(plans, held, waits, 0.0, (_COPIES * gathered, gathered))


def _last(plans: Plans, kinds: KindBytes, rank: Rank, held: Waits, units: list[int]) -> InForward:
    job, chain = plans.job, plans.job.pipelines.kinds.of
    kind = chain[units[-1]]
    behind = [(each, count) for each, count in rank.counts if each in chain[units[-1] + 1 :]]
    unit, experts, own = (_of(each, rank, kind) for each in (kinds.unit, kinds.experts, kinds.kept))
    before = _of(kinds.unit, rank, chain[units[-2]]) if len(units) > 1 else held.root
    before = where(rank.load.repeats[kind] > 1, unit, before)
    # of a block with two units the other one came before
    buffers = where(experts > 0, unit, unit + before)
    stacks = _experts_along_rows(plans, rank, held.division, kind)
    recompute, reshards = (taken(each, rank.rows) for each in (plans.recompute, plans.reshards))
    # its input is there, which is all that is kept of what is made again
    unmade = where(recompute == _MADE_AGAIN, 0.0, own)
    kept = held.one - of_kinds(kinds.kept, behind, rank.rows) - unmade
    stays = held.alike.gathers & (held.alike.piped == 0) & (reshards == 0)
    compute = job.element.compute
    transient = compute * (held.everything + buffers + stacks)
    return _moment(plans, held, stays, kept, (transient, compute * buffers))


def _of(several: Any, rank: Rank, kind: int) -> Numbers:
    """Return what a repeat of one kind of block has, on a rank or beside each of many."""
    found: Numbers = several[kind] if rank.rows is None else several.at(kind, rank.rows)
    return found


def _experts_along_rows(plans: Plans, rank: Rank, division: Division, kind: int) -> Numbers:
    """Return a unit's experts where they are sharded along their rows."""
    job, totals = plans.job, plans.job.kinds.each[0][kind].unit
    if not has_any(totals.expert):
        return 0.0
    which = along_rows(job.model.experts, taken(plans.c.ep, rank.rows), division)
    return where(which, divided_experts(totals, division), 0.0)


def _moment(
    plans: Plans, held: Waits, meant: Mask, kept: Bytes, gathered: tuple[Bytes, Bytes]
) -> InForward:
    """Return what is held where it is meant.

    Args:
        plans: the plans.
        held: what their ranks hold as a forward begins.
        meant: where there is such a moment.
        kept: what blocks before have kept.
        gathered: parameters as they came and copied, and of these what came from where others are freed.
    """
    job, states = plans.job, held.states
    idle, transient = larger(held.pool - gathered[1], 0.0), gathered[0] + held.waiting
    # a first micro-batch finds none: those of the step before are freed
    gradients = where(held.steps > 1, states.gradients, 0.0)
    level = job.context + job.buffers + states.kept - states.gradients + gradients
    every = level + idle + job.share * (kept + transient), gradients, kept, transient, idle
    return InForward(*(where(meant, each, 0.0) for each in every))
