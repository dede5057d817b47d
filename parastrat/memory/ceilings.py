"""What ranks of one plan's pipeline hold at most, told without their moments: few of them may be fullest.

Each part is no less than what formulas of the moments make of it, and little more.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from parastrat.elementwise import larger, smaller
from parastrat.memory.flying import in_flight
from parastrat.memory.masks import lacking_stages
from parastrat.ranks.division import divided_total
from parastrat.ranks.load import NO_PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.activations import KindBytes
    from parastrat.memory.alike import Alike
    from parastrat.memory.held import OfRanks
    from parastrat.memory.plans import Plans
    from parastrat.ranks.spread import Rank
    from parastrat.units import Bytes

#: sums that are added up in another order round by less
_ROUNDING = 1 + 1e-9


def ceilings(plans: Plans, kinds: KindBytes, ranks: Sequence[Rank], c: OfRanks) -> list[Bytes]:
    """Return what each rank of a pipeline holds at most, whose virtual stages do not take turns.

    A rank that gathers has all its parameters then, those of its root twice, and four units; what its
    allocator keeps of them is two of each.

    Args:
        plans: one plan.
        kinds: bytes of one repeat of each kind of block.
        ranks: its ranks.
        c: what is read of it.
    """
    job, d, share, alike = plans.job, plans.division, plans.job.share, plans.alike
    element, every, of_root = job.element, job.context + job.buffers, 0.0
    fewest = smaller(d.dense_shards, d.expert_shards)
    of_parameter = sum(c.elements) / (fewest if alike.shards else smaller(fewest, 1))
    if alike.gathers:
        of_parameter += share * ((1 + alike.splits) * element.compute + element.reduce)
        of_root = 2 * (share + 1) * element.compute + element.reduce
        every += (2 * share * element.compute + of_root) * reduce(larger, kinds.unit)
    if element.copied:
        every += element.copied * reduce(larger, kinds.added)
    crossing = c.virtual_stages * c.width
    every += (2 + alike.splits) * share * c.gradient_accumulation_steps * crossing
    roots, (kept, runs) = kinds.root, _kept_and_running(kinds, alike)
    masks, first = kinds.masks, job.pipelines.kinds.of[0]
    found: list[Bytes] = []
    for rank in ranks:
        load, root, most = rank.load, 0.0, 0.0
        one = crossing + masks[first] * lacking_stages(job, load, c)
        for kind, count in rank.counts:
            one += kept[kind] * count
            root += roots[kind] * count
            most = larger(most, runs[kind])
        held = divided_total(load.trainable, d)
        if load.frozen is not NO_PARAMETERS:
            held += divided_total(load.frozen, d)
        moving = share * (in_flight(alike, c, load.rank) * one + most)
        found.append(_ROUNDING * (every + of_parameter * held + of_root * root + moving))
    return found


def _kept_and_running(kinds: KindBytes, alike: Alike) -> tuple[Sequence[Bytes], Sequence[Bytes]]:
    """Return what a repeat of each kind keeps, with casts that stay, and what exists as it runs."""
    if alike.gathers:
        return kinds.kept, [
            running - never for running, never in zip(kinds.running, kinds.never, strict=True)
        ]
    if not (alike.adds or alike.casts):
        return kinds.kept, kinds.running
    # the largest gradient is added in place of what runs
    every = zip(kinds.running, kinds.adding, kinds.ended, strict=True)
    kept = [own + cast for own, cast in zip(kinds.kept, kinds.casts, strict=True)]
    return kept, [reduce(larger, each) for each in every]
