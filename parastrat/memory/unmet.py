"""What a unit's gradients, what its backward reads, and what is gathered for it are less than all of these.

The ones come while the others go. Experts that are an FSDP2 unit of their own lie inside of their block's:
their backward runs while the block's unit is gathered, and the one prefetched next is then another block's,
without its experts. As it ends they are resharded, and their gradients copied to be reduced, for which
those of the unit before are let go of; attention's backward comes behind that.
Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (``post_backward``,
``_backward_prefetch``, ``wait_for_unshard``) and _fsdp_collectives.py (``foreach_reduce``) of torch 2.13.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

from parastrat.columns import code_of
from parastrat.elementwise import larger, smaller, where
from parastrat.memory.kinds import shared_bytes
from parastrat.memory.over_context import met_attending
from parastrat.memory.plans import expert_units
from parastrat.plan import Recompute
from parastrat.ranks.division import divided_experts
from parastrat.ranks.load import has_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.kinds import Kind
    from parastrat.memory.over_context import OverContext
    from parastrat.memory.plans import Plans
    from parastrat.ranks.load import ParameterTotals
    from parastrat.units import Bytes, Numbers


class Reads(NamedTuple):
    """What one repeat of a kind of block holds as it runs backward, bytes."""

    #: what exists beside what it reads, at its moments
    made_at: Sequence[Bytes]
    #: what it reads, and what of that was made again
    everything: Bytes
    again: Bytes
    #: by ranks of a sequence
    added: OverContext | None


def experts_apart(plans: Plans, totals: ParameterTotals) -> Numbers:
    """Return those of a unit's parameters on a rank that are experts', where these are another unit.

    The plain 0 where no plan has any.
    """
    if plans.apart is False or not has_any(totals.expert):
        return 0
    return where(plans.apart, divided_experts(totals, plans.division), 0.0)


def unit_bytes(plans: Plans, kind: Kind, whole: Numbers, reads: Reads) -> tuple[Bytes, ...]:
    """Return what is never there of a kind of block that is a unit, and its parameters on a rank.

    Returns:
        As ``KindBytes`` has them: ``never``, ``beside_others``, ``unit`` and ``experts``.
    """
    unit, experts = where(plans.alike.gathers, whole, 0.0), experts_apart(plans, kind.unit)
    never = never_met_bytes(plans, kind, reads, unit)
    if not has_any(experts):
        return never, 0.0, unit, experts
    return *never_met_apart(plans, kind, reads, never, (unit, experts)), unit, experts


def freed_bytes(plans: Plans, kind: Kind, added: OverContext | None) -> Bytes:
    """Return what is gone halfway through the backward of one repeat.

    Less what tp ranks gather then, of weights that are stored across the stretches that each of them takes;
    and less the sum of their gradients of the largest weight of experts, if each has them whole for its own
    tokens, under a pipeline: without one these are added up when a step ends.
    """
    freed, element, d = shared_bytes(kind.freed, plans.shares), plans.job.element, plans.division
    sums = plans.alike.piped is not False and plans.c.has("token_heads")
    if kind.regathered is None and not sums:
        return freed
    of_weight = where(plans.alike.shards, element.compute, element.parameter)
    if kind.regathered is not None:
        # the rank's own share of a gradient comes beside its copies: elsewhere it is among all gradients,
        # of a unit it takes the place of the weight's stretches
        copies = of_weight * (kind.regathered - kind.unshared / plans.c.tp)
        behind = shared_bytes(kind.behind_regathered, plans.shares)
        if added is not None:
            behind = behind + added.joined
        more = larger(copies - behind, 0.0)
        freed = freed - where(plans.c.tp > 1, more, 0.0)
    if sums and has_any(kind.added.expert):
        freed = freed - where(plans.alike.piped & d.sums_experts, of_weight * kind.added.expert, 0.0)
    return freed


def never_met_bytes(plans: Plans, kind: Kind, reads: Reads, unit: Numbers) -> Bytes:
    """Return what a unit's gradients and what its backward reads are less than both, where they are most.

    The ones come while the other goes. Most is there as it begins to run, halfway, or when all gradients
    are. They count in the compute format, and all of them in what is gathered.
    """
    made_at, everything, _, added = reads
    whole, freed = plans.job.element.compute * unit, freed_bytes(plans, kind, added)
    summed = plans.job.element.compute * _summed_experts(plans, kind)
    first, *others = kind.moments
    late, later = first.late * whole, kind.later * whole
    never = where(late > 0, smaller(smaller(late, later + freed), everything + summed), 0.0)
    if not others:
        return met_attending(plans, added, made_at, never, whole)
    # less than at the moment at which most exists beside what backward reads
    most = reduce(larger, made_at)
    never = most - made_at[0] + never
    for moment, own in zip(others, made_at[1:], strict=True):
        left = moment.late * whole
        if has_any(summed):
            # experts have run where no more than the rest is left
            left = left + where(left + summed <= whole, summed, 0.0)
        never = smaller(never, most - own + left)
    never = met_attending(plans, added, made_at, never, whole)
    return where(whole > 0, never, 0.0)


def _summed_experts(plans: Plans, kind: Kind) -> Numbers:
    """Return the parameters of experts whose gradients are added up on their own.

    That is under a pipeline, which keeps the sums in the reduction's format, where they are a unit: their
    gradients are gone before the rest of their block has run.
    """
    if plans.alike.piped is False or not has_any(kind.unit.expert):
        return 0.0
    units = expert_units(plans.job, plans.alike, plans.c)
    if units is False:
        return 0.0
    return where(units & plans.alike.piped, divided_experts(kind.unit, plans.division), 0.0)


def never_met_apart(
    plans: Plans, kind: Kind, reads: Reads, never: Bytes, parts: tuple[Numbers, Numbers]
) -> tuple[Bytes, Bytes]:
    """Return what ``never_met_bytes`` does where experts are a unit of their own.

    Gathered are taken to be two of the rest and the experts, beside all gradients of both in the compute
    format, and copied ones of another block's rest. While experts run backward that is so, but for
    gradients that come later. As theirs are copied they are not gathered any more, what they read is gone,
    and the copy is there in place of that of the rest. At the end it alone is left of them, until it makes
    room for a copy of the rest, which is not gathered any more by then. Where units reshard, experts are
    gathered before the unit behind is prefetched, and are there twice while they are copied out of what
    was gathered.

    Args:
        plans: the plans.
        kind: of the block.
        reads: what it holds.
        never: what ``never_met_bytes`` returns.
        parts: a unit's parameters, and of these its experts'.

    Returns:
        Of a block that finds gradients of another, and by how much more that is than of one without.
    """
    element, (unit, experts) = plans.job.element, parts
    rest = unit - experts
    most, whole = reduce(larger, reads.made_at), element.compute * unit
    begun = most - reads.made_at[0]
    moments = zip(kind.moments, reads.made_at, strict=True)
    never_yet = reduce(smaller, (most - made + moment.late * whole for moment, made in moments))
    # shares of gradients are those of all experts; halfway all of theirs are there
    left = element.compute * smaller(kind.later * (rest + experts * plans.division.experts), unit)
    never_yet = smaller(never_yet, begun + left + freed_bytes(plans, kind, reads.added))
    if plans.reshards is not None:
        twice = most + reads.again + 2 * element.compute * rest
        never_yet = where(plans.reshards, smaller(never_yet, twice), never_yet)
    copies, (made, read) = element.reduce * experts, _of_experts(plans, kind, most)
    copied, last = (
        made + read + smaller(left, element.compute * rest),
        _last_of_experts(plans, kind, experts),
    )
    room = smaller(
        2 * element.compute * experts - copies,
        element.compute * (unit + experts) - element.reduce * rest,
    )
    reduced = _reduced_experts(plans, experts)
    ended = made + reads.everything + room - reduced
    if reads.added is not None:
        # between both, of experts the copy alone is there
        late = smaller(reads.added.late * (rest + experts * plans.division.experts), rest)
        attended = begun + reads.added.freed + element.compute * (late + 2 * experts) - copies - reduced
        ended = where(plans.over_context, smaller(ended, attended), ended)

    def beside(others: Bytes) -> Bytes:
        """Return it beside so many bytes of another unit's gradients."""
        taken = copied - larger(copies + last - element.compute * experts - others, 0.0)
        return smaller(smaller(never_yet, taken), ended + others)

    found, alone, is_apart = beside(element.reduce * rest), beside(0.0), experts > 0
    return where(is_apart, found, never), where(is_apart, found - alone, 0.0)


def _reduced_experts(plans: Plans, experts: Numbers) -> Bytes:
    """Return what is there of experts' gradients as the rest of their block runs, where a step makes these.

    They are reduced before the rest of the block has run; later micro-batches find all gradients.
    """
    reduced = plans.job.element.gradient * experts / plans.division.expert_shards
    return where(plans.c.gradient_accumulation_steps == 1, reduced, 0.0)


def _last_of_experts(plans: Plans, kind: Kind, experts: Numbers) -> Bytes:
    """Return the gradient of experts that is still there as all are copied: of their last product's weight.

    Where FSDP2 shards along columns, what each is made of is put in another order before, and the loop over
    them has not let go of the last (``foreach_reduce``). It does where experts on a rank do not divide over
    the ranks that hold the same ones.
    """
    d, model = plans.division, plans.job.model
    if model.experts is None or not has_any(kind.added.expert):
        return 0.0
    columns = (model.experts / d.experts) % d.expert_shards != 0
    last = larger(experts - kind.added.expert / d.experts, 0.0)
    return where(columns, plans.job.element.compute * last, 0.0)


def _of_experts(plans: Plans, kind: Kind, most: Bytes) -> tuple[Bytes, Bytes]:
    """Return what is gone behind the backward of experts: of the most that is made, and of what is read.

    Left of the one are gradients of the residual stream and of its branch, as when experts begin; what
    shared experts kept is gone by then.
    """
    again, left = code_of(Recompute.NONE), kind.moments[-1].working._replace(expert=None)
    kept = kind.kept[again] if plans.alone else plans.kinds.kept_of(plans.alike.variant, again)
    read = 0.0 if kept.expert is None else kept.expert * plans.shares.expert
    return most - shared_bytes(left, plans.shares), read
