"""What exists as gradients of one weight are added up: of micro-batches, or of the blocks that share it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.elementwise import where
from parastrat.memory.kinds import shared_bytes
from parastrat.memory.unmet import experts_apart
from parastrat.ranks.division import divided_total

if TYPE_CHECKING:
    from parastrat.memory.kinds import Kind
    from parastrat.memory.plans import Plans
    from parastrat.units import Bytes, Mask


def adding_bytes(plans: Plans, kind: Kind, *, new: int) -> Bytes:
    """Return what exists as the largest gradient of one repeat is added to that of a micro-batch before.

    Beside what was made again. Where autocast made the weight a short copy, that one's gradient has taken
    its place. Of a tied weight two more are there: the later block's waits for the earlier one's, and their
    sum is one more. A first micro-batch adds no ``new`` one.
    """
    several = where(plans.alike.piped, new, new + 2 * kind.tied)
    gradients = several * plans.job.element.gradient * divided_total(kind.added, plans.division)
    return gradients + shared_bytes(kind.beside_added, plans.shares)


def meeting_bytes(plans: Plans, kind: Kind) -> Bytes:
    """Return what FSDP2's root makes as two gradients of its tied weight meet, in backward's last block.

    One waits, the other is made, and their sum is one more; copies of the gradients of the unit before are
    not let go of. Those of the root's own, which are taken to be there with this block, come behind it.
    """
    element, division = plans.job.element, plans.division
    met = (3 * element.compute - element.reduce) * divided_total(kind.added, division)
    # the last that a block reduces is not its experts
    before = divided_total(kind.before, division) - experts_apart(plans, kind.before)
    return met + element.reduce * before


def gradients_meet(plans: Plans) -> Mask:
    """Return where FSDP2 adds up the gradients of a tied weight unsharded: torch's, without a pipeline."""
    stack, alike = plans.job.stack, plans.alike
    by_units = not (stack.gathers_in_graph or stack.ends_apart)
    return alike.gathers & by_units & (alike.piped == 0)
