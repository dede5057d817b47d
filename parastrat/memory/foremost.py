"""What one rank of a pipeline keeps and makes as its backward begins, for one sample, by what divides it.

That is the first rank, which has most in flight, or the one behind it where that has more of a model's
mixtures. What blocks hold is added up once for each pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.memory.kinds import Shared
from parastrat.plan import Recompute
from parastrat.ranks import flights
from parastrat.ranks.pipelines import DIVIDED, FOREMOST
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from parastrat.memory.variants import KindsOf

#: in how many ways a rank may have micro-batches in flight: one, and behind it those in which its virtual
#: stages take turns; and in how many variants blocks are
WAYS, VARIANTS = 1 + len(flights.WAYS), 4
#: what is told of a rank: behind these, of each kind of unit
KEPT, AT_HEAD, AT_UNITS = range(3)
_ALONE = (1, 1, False)
#: the rank behind the first has one micro-batch fewer in flight: by how much more its blocks make, or it
#: trains, it is told instead
_FAR_MORE, _MORE = 2, 1.25


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """What a model's blocks hold for one sample, by what divides it as ``Shared`` has it."""

    #: one repeat keeps: variants before policies before kinds before parts
    kept: Any
    #: what exists at the moments of each kind: variants before moments before parts
    working: Any
    kind_of: tuple[int, ...]
    #: what exists at most as each kind runs if all is computed again
    runs: Any
    #: what a head makes that the root gathers: variants before parts; nothing where a unit is the last
    head: Any
    #: which kinds are units
    units: tuple[bool, ...]
    #: of pipelines, which of their ranks is told, by its place among the distinct ones
    ranks: dict[int, int] = field(default_factory=dict)
    #: of their ways and variants: what that rank keeps, and has beside it as a head runs and at the moments
    #: of the foremost unit of each kind; policies before parts
    told: dict[int, Any] = field(default_factory=dict)


@remembered
def blocks_of(kinds: KindsOf) -> Blocks:
    """Return what the blocks of a model hold, whatever its devices, batch and optimizer."""
    variants, last = kinds.columns, kinds.pipelines.kinds.of[-1]
    many = len(kinds.pipelines.kinds.blocks)
    kept = np.array([[_parts(own.kept[code_of(policy)], many) for policy in Recompute] for own in variants])
    # moments before kinds
    working = np.array([[_parts(each.working, many) for each in own.moments] for own in variants])
    units = tuple(np.ravel(variants[0].of_unit).astype(bool).tolist())
    head = working[:, 0, last] + _parts(kinds.output, 1)
    made = kept[0, 0] - kept[0, code_of(Recompute.FULL)]
    return Blocks(
        kept=kept,
        working=working.reshape(len(variants), -1, working.shape[-1]),
        runs=working[0].sum(axis=-1).max(axis=0) + made.sum(axis=-1),
        kind_of=tuple(range(many)) * working.shape[1],
        head=head * (not units[last]),
        units=units,
    )


def _parts(shared: Shared | None, kinds: int) -> Any:
    """Return parts beside kinds, of which one number may stand for all."""
    parts = np.zeros((kinds, len(Shared._fields)))
    for place, part in enumerate(shared or ()):
        if part is not None:
            parts[:, place] = np.ravel(part)
    return parts


def told_of(kinds: KindsOf, code: int) -> Any:
    """Return what is told of a rank for one sample: before policies before parts."""
    blocks = blocks_of(kinds)
    if code not in blocks.told:
        (place, way), variant = divmod(code // VARIANTS, WAYS), code % VARIANTS
        kept, working = blocks.kept[variant], blocks.working[variant]
        counts, freed = _turning(kinds, place, way) if way else _in_order(kinds, place)
        splits = way and flights.WAYS[way - 1][1]
        found = np.zeros((AT_UNITS + len(working), *kept[:, 0].shape))
        found[KEPT] = np.einsum("k,pks->ps", counts, kept)
        if kinds.pipelines.known.get(_ALONE) == place:
            found[AT_HEAD] = blocks.head[variant]
        of_units = [
            # what waits for the gradients of weights may be what was made again
            working[moment]
            + (0 if splits else kept[0, kind] - kept[:, kind])
            - np.einsum("k,pks->ps", freed[kind], kept)
            for moment, kind in enumerate(blocks.kind_of)
            if freed[kind] is not None and blocks.units[kind]
        ]
        if of_units:
            # the last one stands for those that the rank has not
            found[AT_UNITS:] = of_units[-1]
            found[AT_UNITS : AT_UNITS + len(of_units)] = of_units
        blocks.told[code] = found
    return blocks.told[code]


def rank_of(kinds: KindsOf, place: int) -> int:
    """Return which of the foremost distinct ranks of a pipeline is told."""
    blocks = blocks_of(kinds)
    if place not in blocks.ranks:
        ranks, many = kinds.pipelines.cuts[place].rows[:FOREMOST], len(kinds.pipelines.kinds.of)
        has = (ranks[:, 1 : 1 + many] @ kinds.pipelines.of_kind > 0) & blocks.units
        runs = (has * blocks.runs).max(axis=1)
        trained = ranks[:, 1 + many : 1 + many + len(DIVIDED)].sum(axis=1)
        behind = len(ranks) > 1 and (runs[1] > _FAR_MORE * runs[0] or trained[1] > _MORE * trained[0])
        blocks.ranks[place] = int(behind)
    return blocks.ranks[place]


def _in_order(kinds: KindsOf, place: int) -> tuple[Any, list[Any]]:
    """Return the repeats of each kind on a rank, and of those behind the foremost of each."""
    cut, of = kinds.pipelines.cuts[place], kinds.pipelines.kinds.of
    held = cut.held[0, int(cut.rows[rank_of(kinds, place), 0])]
    ran = np.zeros(len(kinds.pipelines.kinds.blocks))
    freed: list[Any] = [None] * len(ran)
    for block in reversed(range(len(held))):
        kind = of[block]
        if held[block] and freed[kind] is None:
            freed[kind] = ran.copy()
        ran[kind] += held[block]
    return ran, freed


def _turning(kinds: KindsOf, place: int, way: int) -> tuple[Any, list[Any]]:
    """Return what ``_in_order`` does of all that is in flight, where virtual stages take turns."""
    few, split = flights.WAYS[way - 1]
    many = len(kinds.pipelines.kinds.blocks)
    held = kinds.pipelines.firsts_of(place, split=split)[few].at_kinds[0, :, :many, rank_of(kinds, place)]
    # nothing ran before the block behind all others
    counts = held.max(axis=0)
    return counts, [counts - alive if alive.any() else None for alive in held]
