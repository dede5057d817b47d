"""What activations of each kind of block take on a rank: what is kept, and what exists while one runs.

Formulas take numbers of one kind and one plan, or columns of all kinds beside arrays of plans.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.elementwise import ByKind, larger, smaller, some, where
from parastrat.memory.added import adding_bytes, gradients_meet, meeting_bytes
from parastrat.memory.kinds import shared_bytes
from parastrat.memory.masks import masks_kept
from parastrat.memory.over_context import of_ranks
from parastrat.memory.plans import in_parallel
from parastrat.memory.unmet import Reads, experts_apart, freed_bytes, unit_bytes
from parastrat.memory.variants import under
from parastrat.plan import Offload, Recompute
from parastrat.ranks.division import divided, divided_total, sharded_total
from parastrat.ranks.load import has_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.kinds import Kind, Shared
    from parastrat.memory.over_context import OverContext
    from parastrat.memory.plans import Plans
    from parastrat.units import Bytes

_AWAY = code_of(Offload.PARAMETERS)
_NOTHING_AGAIN, _ATTENTION_AGAIN = code_of(Recompute.NONE), code_of(Recompute.ATTENTION)
#: axes of kinds beside plans; policies come before these
_KINDS = 2


@dataclass(slots=True)
class KindBytes:
    """Bytes of one repeat of each kind of block: numbers one after another, or arrays with kinds first."""

    #: gradients that come as it runs; None where that does not matter
    coming: Coming | None
    #: for backward of one micro-batch
    kept: Any
    #: what exists while it runs
    running: Any
    #: what a split backward leaves to that of the weights: gradients of products, and what was made again
    awaited: Any
    #: what exists as its largest gradient is added to that of a micro-batch before
    adding: Any
    #: casts that a context still remembers at the end of a forward, and of a head what is there then
    casts: Any
    ended: Any
    #: by how much less a unit's gradients and what its backward reads are than both
    never: Any
    #: of that what is so only beside gradients of a unit before
    beside_others: Any
    #: parameters on a rank: of a unit, of these its experts' that are another one, of a block outside, and
    #: of the largest weight if gradients are copied
    unit: Any
    experts: Any
    root: Any
    added: Any
    #: of masks behind it, on a stage that lacks it
    masks: Any


@dataclass(slots=True)
class Coming:
    """Gradients that come as one repeat of each kind of block runs, as far as they stay on the rank."""

    own: Any
    #: of these a unit's, such as are there whenever it may hold most, and all where it is unknown when
    of_unit: Any
    soon: Any
    unknown: Any
    #: of a unit's, what is not there of the one behind where units end: no more than is prefetched of it
    last: Any


def kinds_bytes(plans: Plans) -> KindBytes:
    """Return the bytes of all kinds of block."""
    coming = None if plans.alike.frees is False else coming_gradients(plans)
    if plans.alone:
        kinds = plans.kinds.each[plans.alike.variant]
        every: Any = zip(*[_of_kind(plans, kind) for kind in kinds])  # noqa: B905 - alike
    else:
        found = _of_kind(plans, under(plans.kinds, plans.alike.variant))
        every = [ByKind(_beside(each, plans)) for each in found]
    return KindBytes(coming, *every)


def _beside(each: Bytes, plans: Plans) -> Bytes:
    """Return columns of kinds beside those of plans, of which they may not depend; kinds come first."""
    if type(each) is not np.ndarray:
        return each
    if each.shape[-1] != len(plans.c.pp):
        each = np.repeat(each, len(plans.c.pp), axis=-1)
    return each if each.ndim == _KINDS else each.swapaxes(0, 1)


def _of_kind(plans: Plans, kind: Kind) -> tuple[Bytes, ...]:
    """Return the bytes of a kind of block, or of all kinds, as ``KindBytes`` has them.

    Under autocast what is kept is also the short copies of weights, one for each micro-batch, unless they
    are made again with the block: the casts that a context remembers end with the forward.
    """
    alike, division, policy = plans.alike, plans.division, plans.policy
    over = plans.over_context is not False
    shares, added, (others, ending) = of_ranks(plans, kind) if over else (plans.shares, None, (0.0, 0.0))
    own = _kept(plans, kind, policy)
    casts = made = root = largest = 0.0
    of_unit: tuple[Bytes, ...] = (0.0, 0.0, 0.0, 0.0)
    kept = everything = shared_bytes(own, shares) + others
    # policies do nothing to some kinds, but for casts
    again = plans.again
    if plans.alone and alike.casts is False:
        again = own is not kind.kept[_NOTHING_AGAIN]
    if again:
        everything = shared_bytes(_kept(plans, kind, _NOTHING_AGAIN), shares) + others
    if alike.casts is not False:
        cast = where(alike.casts, plans.job.element.cast * divided_total(kind.cast, division), 0.0)
        # what is no unit no policy makes again
        keeps = (kind.of_unit == 0) | (policy <= _ATTENTION_AGAIN)
        casts = where(keeps, 0.0, cast)
        kept, everything = kept + where(keeps, cast, 0.0), everything + cast
    if over or kind.regathered is not None:
        more, read = _beside_saved(plans, kind, added)
        kept, everything = kept + more, everything + read
    if again:
        # a policy may keep more than what backward reads
        everything = larger(everything, kept)
        made = everything - kept
    # of a block that runs, at its moments
    made_at = [shared_bytes(kind.moments[0].working, shares)]
    if plans.kinds.busy:
        made_at += [shared_bytes(moment.working, shares) for moment in kind.moments[1:]]
    beside = made if alike.remade_waits is False else where(alike.remade_waits, 0.0, made)
    running = _running_bytes(plans, kind, (made_at, beside), added) + ending
    if alike.gathers is not False:
        unit, root = divided_total(kind.unit, division), divided_total(kind.root, division)
        # what is no unit, and a model without units, has the plain 0, which stands beside no plan
        if has_any(unit):
            of_unit = unit_bytes(plans, kind, unit, Reads(made_at, everything, made, added))
    if plans.job.element.copied:
        largest = divided_total(kind.added, division)
    return (
        kept,
        running,
        shared_bytes(kind.awaited, shares) + made if alike.splits is not False else 0.0,
        adding_bytes(plans, kind, new=1) + beside if alike.adds is not False else 0.0,
        casts,
        _ended_bytes(plans, kind, running) if alike.casts is not False else 0.0,
        *of_unit,
        root,
        largest,
        masks_kept(plans, kind),
    )


def _beside_saved(plans: Plans, kind: Kind, added: OverContext | None) -> tuple[Bytes, Bytes]:
    """Return what a repeat keeps, and what its backward reads, beside what the model's own code saves.

    A rank's stretches of a weight that tp ranks gather, where that is not stored on it as it is read; and
    what ranks of a sequence bring.
    """
    alike, more, read = plans.alike, 0.0, 0.0
    if kind.regathered is not None and alike.shards is not False:
        taken = plans.job.element.compute * kind.stretched / plans.c.tp
        read = where((plans.c.tp > 1) & alike.shards, taken, 0.0)
        more = where(plans.policy <= _ATTENTION_AGAIN, read, 0.0)
    return (more, read) if added is None else (more + added.kept, read + added.read)


def _kept(plans: Plans, kind: Kind, policy: Any) -> Shared:
    """Return what is kept under a policy, or under each plan's."""
    return kind.kept[policy] if plans.alone else plans.kinds.kept_of(plans.alike.variant, policy)


def _running_bytes(
    plans: Plans, kind: Kind, of_block: tuple[Sequence[Bytes], Bytes], added: OverContext | None
) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was computed again.

    And the model's output, as long as backward takes, of which Megatron's keeps none (``Saved()`` in its
    blocks).
    """
    alike, (made_at, again) = plans.alike, of_block
    made = (_working_bytes(plans, kind, made_at) if plans.kinds.busy else made_at[0]) + again
    if added is not None and alike.shards is not True:
        attends = plans.over_context & (alike.shards == 0) & (added.late > 0)
        made = where(attends, larger(made, made_at[0] + again - added.freed), made)
    if kind.regathered is not None and alike.shards is not True:
        # where attention runs, what stands behind it is gone; of units its gradients are there
        made = made + where(alike.shards, 0.0, larger(-freed_bytes(plans, kind, added), 0.0))
    if alike.splits is not False and kind.retained is not None:
        stays = shared_bytes(kind.retained, plans.shares)
        made = where(alike.splits, larger(made, stays + again), made)
    if some(kind.tied):
        made = _met_of_tied(plans, kind, made, again)
    made = made + plans.output
    if kind.of_loss is None:
        return made
    if alike.piped is not False and kind.head is not False and kind.chunk is None:
        # a forward ends with as much as backward makes, and with what a stage returned
        ends = alike.piped & in_parallel(plans.c, plans.division) & kind.head
        made = made + where(ends, shared_bytes(kind.output, plans.shares), 0.0)
    return made + kind.of_loss * plans.loss


def _met_of_tied(plans: Plans, kind: Kind, made: Bytes, again: Bytes) -> Bytes:
    """Return what exists while backward of a tied weight's block runs, at most as its gradients meet."""
    alike = plans.alike
    if alike.sums is not False:
        sums = adding_bytes(plans, kind, new=0) + again
        made = where(alike.sums & kind.tied, larger(made, sums), made)
    if alike.gathers is not False:
        made = where(gradients_meet(plans) & kind.tied, larger(made, meeting_bytes(plans, kind)), made)
    return made


def _working_bytes(plans: Plans, kind: Kind, made_at: Sequence[Bytes]) -> Bytes:
    """Return what exists while one repeat runs, at its moment of most, if it has several.

    Where gradients come one by one, with those that are there by then and not at all such moments.
    """
    if plans.alike.one_by_one is False:
        return reduce(larger, made_at)
    alone = plans.alike.one_by_one & (plans.c.gradient_accumulation_steps == 1)
    gradients = plans.job.element.gradient * divided_total(kind.trainable, plans.division)
    coming = where(alone, gradients, 0.0)
    every = zip(made_at, kind.moments, strict=True)
    return reduce(larger, (made + moment.sooner * coming for made, moment in every))


def _ended_bytes(plans: Plans, kind: Kind, running: Bytes) -> Bytes:
    """Return what of running bytes is there when a forward ends: of a head the loss.

    One tensor fewer than backward makes; in parallel as many. Models that are given their targets compute
    the loss in their forward; one in chunks has no gradient of its weight by then.
    """
    if kind.of_loss is None:
        return 0.0
    made = running if kind.chunk is None else shared_bytes(kind.chunk, plans.shares)
    ended = made - where(plans.c.loss_parallel, 0.0, kind.of_loss * plans.shares.replicated)
    if plans.alike.piped is not False:
        # what a stage returned is there up to its loss; in parallel it is counted already
        counted = in_parallel(plans.c, plans.division) & (kind.chunk is None)
        returned = where(counted, 0.0, shared_bytes(kind.output, plans.shares))
        ended = ended + where(plans.alike.piped, returned, 0.0)
    return where(kind.head, ended, 0.0)


def trained_parameters(plans: Plans) -> Any:
    """Return the parameters of each kind of block that are trained on a rank, as ``KindBytes`` has them."""
    kinds, division = plans.kinds, plans.division
    if plans.alone:
        return [divided_total(kind.trainable, division) for kind in kinds.each[plans.alike.variant]]
    return ByKind(_beside(divided_total(kinds.columns[0].trainable, division), plans))


def coming_gradients(plans: Plans) -> Coming:
    """Return the gradients that come as blocks of each kind run."""
    if plans.alone:
        kinds = plans.kinds.each[plans.alike.variant]
        return Coming(*zip(*[_own_gradients(plans, kind) for kind in kinds]))  # noqa: B905 - alike
    columns = _own_gradients(plans, plans.kinds.columns[0])
    return Coming(*(ByKind(_beside(each, plans)) for each in columns))


def _own_gradients(plans: Plans, kind: Kind) -> tuple[Bytes, ...]:
    """Return the gradients that come as one repeat of a kind runs, as ``Coming`` has them.

    What the root unit gathers comes at the end; what is offloaded is on the host.
    """
    gathers = plans.alike.gathers
    if gathers is True and kind.of_unit is False:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    here = sharded_total(divided(kind.trainable, plans.division), plans.division, gathers)
    own = plans.job.element.gradient * (plans.alike.offload != _AWAY) * here
    of_unit = where(kind.of_unit, own, 0.0)
    last = of_unit
    if plans.apart is not False and has_any(kind.unit.expert):
        rest = divided_total(kind.unit, plans.division) - experts_apart(plans, kind.unit)
        last = where(plans.apart, smaller(own, plans.job.element.compute * rest), last)
    if gathers is True:
        return of_unit, of_unit, 0.0, 0.0, last
    soon, unknown = own * kind.soonest, where(kind.unknown, own, 0.0)
    if gathers is not False:
        own, soon, unknown = (
            where(gathers, of_gathering, of_others)
            for of_gathering, of_others in ((of_unit, own), (0.0, soon), (0.0, unknown))
        )
    return own, of_unit, soon, unknown, last
