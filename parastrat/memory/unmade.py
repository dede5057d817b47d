"""Gradients that backward has not made yet, where each step makes them anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.elementwise import larger, of_kinds, smaller, where
from parastrat.memory.activations import trained_parameters
from parastrat.memory.gathered import by_way

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.activations import Coming
    from parastrat.memory.gathered import When
    from parastrat.memory.held import RankHeld
    from parastrat.memory.plans import Plans
    from parastrat.ranks.starts import Start
    from parastrat.units import Bytes


def unmade_bytes(
    coming: Coming | None, rank: RankHeld, of_units: Bytes, start: Start, ways: Sequence[When]
) -> Sequence[Bytes]:
    """Return the gradients that are not there as a block runs in the backward of the first micro-batch.

    Sharded ones come as units reduce, the root's at the end, and under a pipeline all of them.

    Args:
        coming: the gradients that each kind of block makes; None: none comes before a step's end.
        rank: what the block's rank holds.
        of_units: of its gradients those of units.
        start: the block.
        ways: the repeats that are looked at.
    """
    alike, rows = rank.alike, start.rows
    late = alike.late
    if late is True or coming is None:
        return (rank.gradients,) * len(ways)
    own = coming.own[start.place]
    left = rank.gradients - of_kinds(coming.own, start.freed, rows)
    copied, last = own, own + coming.last[start.place]
    if alike.gathers is not True:
        # a block may hold most beside all gradients of one repeat: as the next one runs. Where none
        # follows, and it is unknown what of its own it makes meanwhile, those are all
        beside = larger(own * start.more, coming.unknown[start.place])
        left = left - coming.soon[start.place]
        # units that reduce one by one do so that the last but one is the end: behind it none is gathered
        copied, last = where(alike.gathers, own, beside), where(alike.gathers, last, own)
    # blocks outside units that stand before the last unit have not run
    units = of_units - of_kinds(coming.of_unit, start.freed, rows)
    ended = where(start.of_unit, smaller(left - units + last, left), left)
    found = [larger(still, 0.0) for still in by_way(ways, left, left - copied, ended)]
    return found if late is False else [where(late, rank.gradients, still) for still in found]


def lacking_bytes(plans: Plans, rank: RankHeld, unmade: Sequence[Bytes], adding: Bytes) -> Sequence[Bytes]:
    """Return by how much less is held than with all gradients, at the moments of most.

    Later micro-batches find all but those that a pipeline reduces at the end of a step; where one fewer is
    in flight then, as under GPipe, either may hold most.

    Args:
        plans: the plans.
        rank: what the block's rank holds.
        unmade: in the backward of the first micro-batch, in each of some ways.
        adding: what only gradients make that are added to others.
    """
    alike, share = rank.alike, plans.job.share
    lacking = [each + share * adding for each in unmade]
    if alike.late is True:
        return lacking
    # of what is gathered unit by unit later micro-batches lack none
    one = where(alike.gathers | (rank.steps > rank.flying), 0.0, share * rank.one)
    alone = alike.late | (rank.steps == 1)
    return [where(alone, each, smaller(each, one)) for each in lacking]


def early_bytes(plans: Plans, rank: RankHeld, start: Start, ways: Sequence[When]) -> Sequence[Bytes]:
    """Return by how much less is there than with all gradients that wait for the end of a step, whole.

    That is where all micro-batches of a step are in flight as the first of them runs backward, in pipelines
    that gather parameters. As the next one does these gradients are there, but one micro-batch fewer is in
    flight: either may be the moment of most. Those of the last repeat come as it runs, in the compute
    format, and take the other one when it has run.
    """
    trained, reduce = trained_parameters(plans), plans.job.element.reduce
    left, own = rank.trained - of_kinds(trained, start.freed, start.rows), trained[start.place]
    alone = rank.steps == 1
    # a head is none of the last: when all of a later micro-batch is there its first moment tells
    ended = where(start.of_unit | start.ended, own, left)
    still = by_way(ways, left, left - own, ended)
    waiting = [reduce * larger(each, 0.0) for each in still]
    return [where(rank.early, where(alone, each, smaller(each, rank.one)), 0.0) for each in waiting]
