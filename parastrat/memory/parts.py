"""What is held at a moment at which a rank may peak, in the parts of an estimate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.elementwise import larger, of_kinds, some, where
from parastrat.memory.activations import coming_gradients
from parastrat.memory.gathered import ONCE
from parastrat.memory.unmade import lacking_bytes, unmade_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.elementwise import Counts
    from parastrat.memory.backward import Moving
    from parastrat.memory.held import RankHeld
    from parastrat.memory.in_forward import InForward
    from parastrat.memory.plans import Plans
    from parastrat.ranks.starts import Start
    from parastrat.units import Bytes

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")


def outside_parts(plans: Plans, held: RankHeld) -> Sequence[Bytes]:
    """Return ``PARTS`` of what a rank holds outside of backward where that is most, bytes."""
    found = step_parts(plans, held)
    for moment in held.forward:
        most = moment.total == held.stepping
        parts = zip(forward_parts(plans, held, moment), found, strict=True)
        found = [where(most, own, other) for own, other in parts]
    return found


def step_parts(plans: Plans, held: RankHeld) -> Sequence[Bytes]:
    """Return ``PARTS`` of what a rank holds while the optimizer steps, bytes.

    While a foreach optimizer runs there are no activations, but one temporary copy.
    """
    states = held.states
    transient, overhead = states.stepping + held.buffers, plans.job.context + held.pool
    parameters = states.parameters + plans.job.buffers
    return parameters, states.gradients, states.optimizer, 0.0, transient, overhead


def forward_parts(plans: Plans, held: RankHeld, at: InForward) -> Sequence[Bytes]:
    """Return ``PARTS`` of what a rank holds as a forward gathers a unit, bytes."""
    states, job = held.states, plans.job
    overhead = job.context + at.idle + job.stack.fragmentation * (at.activations + at.transient)
    parameters = states.parameters + job.buffers
    return parameters, at.gradients, states.optimizer, at.activations, at.transient, overhead


def backward_parts(
    plans: Plans, held: RankHeld, moving: Moving, lacking: Sequence[Bytes] | None
) -> Sequence[Bytes]:
    """Return ``PARTS`` of what a rank holds as a block runs backward, bytes.

    Args:
        plans: the plans.
        held: what the rank holds whatever runs.
        moving: what is there beside, in the first of its ways.
        lacking: what ``lacking_of`` tells of it.
    """
    job, states, gathers = plans.job, held.states, held.alike.gathers
    gathered = 0.0 if moving.gathered is None else moving.gathered[0]
    waiting = 0.0 if moving.waiting is None else moving.waiting[0]
    lacks = 0.0 if lacking is None else lacking[0]
    not_yet = 0.0 if moving.not_yet is None else moving.not_yet[0]
    unmade = larger(lacks - job.share * moving.adding, 0.0)
    activations = held.held - moving.freed[0]
    coming = gathered + moving.running + waiting + held.buffers
    transient = coming - moving.never - (lacks - unmade) / job.share - not_yet
    overhead = job.context + held.pool
    if job.flags.pooled and gathers is not False:
        # those of the step before are freed, and their memory is kept for the next
        overhead = overhead + where(gathers, lacks, 0.0)
    overhead = overhead + job.stack.fragmentation * (activations + transient)
    parameters = states.parameters + job.buffers
    return parameters, states.gradients - unmade, states.optimizer, activations, transient, overhead


def lacking_of(
    plans: Plans, held: RankHeld, counts: Counts, start: Start, moving: Moving
) -> Sequence[Bytes] | None:
    """Return by how much less is there than with all gradients, also where those of a step before are kept.

    Args:
        plans: the plans.
        held: what the block's rank holds.
        counts: of repeats on the rank.
        start: the block.
        moving: what is there as it runs.
    """
    alike = held.alike
    if alike.gathers is False or not plans.job.flags.pooled:
        return moving.lacking
    if alike.piped is False and alike.gathers is True and not some(held.steps == 1):
        return None
    coming, of_units = None, 0.0
    # of units there are none yet as the first block begins to run
    begins = alike.gathers is True and moving.ways == ONCE and not start.freed
    if alike.late is not True and not begins:
        coming = coming_gradients(plans)
        of_units = of_kinds(coming.of_unit, counts, start.rows)
    unmade = unmade_bytes(coming, held, of_units, start, moving.ways)
    comes = alike.gathers | alike.frees
    if comes is not True:
        unmade = [where(comes, each, 0.0) for each in unmade]
    return lacking_bytes(plans, held, unmade, moving.adding)
