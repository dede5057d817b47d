"""What one rank of a pipeline keeps and makes as its backward begins, for one sample, by what divides it.

That is the first rank, which has most in flight, or one behind it where that has more of a model's
mixtures. What blocks hold is added up once for each pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.distinct import places_of
from parastrat.memory.kinds import Shared
from parastrat.plan import Recompute
from parastrat.ranks import flights
from parastrat.ranks.chains import DIVIDED, FOREMOST
from parastrat.ranks.firsts import begun
from parastrat.ranks.load import has_any
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.memory.variants import KindsOf
    from parastrat.ranks.chains import Cut

#: in how many ways a rank may have micro-batches in flight: one, and behind it those in which its virtual
#: stages take turns; and in how many variants blocks are
WAYS, VARIANTS = 1 + len(flights.WAYS), 4
#: what is told of a rank: behind these, of each kind of unit
KEPT, AT_HEAD, HALFWAY, AT_UNITS = range(4)
_ALONE = (1, 1, False)
#: bytes that stand for a moment that a rank does not have
_NONE = -1e30
#: a rank behind another has no more micro-batches in flight: by how much more its blocks make, or it
#: trains, it is told instead
_FAR_MORE, _MORE = 2, 1.25
_REPLICATED, _SEQUENCE = Shared._fields.index("replicated"), Shared._fields.index("sequence")
#: ranks that are told at once, so that little is there beside what is kept of them
_AT_ONCE = 32


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
    #: of the only kind of unit, where tp ranks gather weights halfway through its backward, its place and
    #: how much less than at its first moment exists then at most beside these: variants before parts
    halfway: tuple[int, Any] | None
    #: which kinds are units
    units: tuple[bool, ...]
    #: what that rank keeps, and has beside it as a head runs and at the moments of the foremost unit of
    #: each kind; before policies before parts. Ranks come first, by the places of their ways and variants
    told: list[tuple[dict[int, int], Any]]
    #: of pipelines, which of their ranks is told, by its place among the distinct ones
    ranks: dict[int, int] = field(default_factory=dict)


@remembered
def blocks_of(kinds: KindsOf) -> Blocks:
    """Return what the blocks of a model hold, whatever its devices, batch and optimizer."""
    last, many = kinds.pipelines.kinds.of[-1], len(kinds.pipelines.kinds.blocks)
    kept = _parts(kinds.kept, many, VARIANTS * len(Recompute))
    kept = np.ascontiguousarray(kept.reshape(many, VARIANTS, -1, kept.shape[-1]).transpose(1, 2, 0, 3))
    units = tuple(np.ravel(kinds.table("of_unit")).astype(bool).tolist())
    # where several ranks have a sequence nothing divides it further outside of units (``over_context``):
    # what is kept whole there in place of a share counts as no more than the difference
    apart = ~np.array(units)
    outside = kept[:, :, apart]
    less = np.minimum(outside[..., _SEQUENCE], 0.0)
    outside[..., _REPLICATED] += less
    outside[..., _SEQUENCE] -= less
    kept[:, :, apart] = outside
    # moments before kinds
    at_moments = [_parts(moment.working, many, VARIANTS) for moment in kinds.table("moments")]
    working = np.array(at_moments).transpose(2, 0, 1, 3)
    head = working[:, 0, last] + _parts(kinds.output, 1, 1)[0, 0]
    made = kept[0, 0] - kept[0, code_of(Recompute.FULL)]
    together = working.reshape(VARIANTS, -1, working.shape[-1])
    return Blocks(
        kept=kept,
        working=together,
        runs=working[0].sum(axis=-1).max(axis=0) + made.sum(axis=-1),
        kind_of=tuple(range(many)) * working.shape[1],
        head=head * (not units[last]),
        halfway=_halfway(kinds, units),
        units=units,
        told=[({}, np.empty((0, AT_UNITS + together.shape[1], *kept.shape[1::2])))],
    )


def _halfway(kinds: KindsOf, units: Sequence[bool]) -> tuple[int, Any] | None:
    """Return what ``Blocks.halfway`` is: ``memory.unmet`` has what is there at that moment, or more.

    Not of a unit with experts, which may be another unit, nor of one whose gradients all come sooner.
    """
    kind = units.index(True) if sum(units) == 1 else 0
    own = kinds.each[0][kind]
    if not own.of_unit or own.regathered is None or has_any(own.unit.expert) or not own.moments[0].late:
        return None
    several = [each[kind] for each in kinds.each]
    gone = [
        (each.freed, each.behind_regathered, each.attending and each.attending.joined) for each in several
    ]
    return kind, np.array([sum(_parts(part, 1, 1)[0, 0] for part in parts) for parts in gone])


def _parts(shared: Shared | None, kinds: int, variants: int) -> Any:
    """Return parts beside kinds and their variants, of which one number may stand for all."""
    parts = np.zeros((kinds, variants, len(Shared._fields)))
    for place, part in enumerate(shared or ()):
        if part is not None:
            parts[:, :, place] = part
    return parts


def told_of(kinds: KindsOf, codes: Sequence[int]) -> Any:
    """Return what is told of ranks for one sample; ranks before that before policies before parts."""
    told = blocks_of(kinds).told
    places, table = told[-1]
    others = [code for code in codes if code not in places]
    if others:
        parts = (others[first : first + _AT_ONCE] for first in range(0, len(others), _AT_ONCE))
        table = np.concatenate([table, *(_told(kinds, part) for part in parts)])
        places = places | {code: place for place, code in enumerate(others, len(places))}
        # both at once, as threads may ask for the same
        told[:] = [(places, table)]
    return table.take([places[code] for code in codes], axis=0)


def _told(kinds: KindsOf, codes: Sequence[int]) -> Any:
    blocks, (ways, variant) = blocks_of(kinds), np.divmod(np.array(codes), VARIANTS)
    (place, way), (several, own) = np.divmod(ways, WAYS), places_of(ways)
    counts, behind, has = (each[own] for each in _ran(kinds, several.tolist()))
    kept, working = blocks.kept[variant], blocks.working[variant]
    # ranks before kinds before policies with parts
    by_kind = kept.swapaxes(1, 2).reshape(*kept.shape[:1], kept.shape[2], -1)
    found = np.zeros((len(codes), AT_UNITS + working.shape[1], *kept.shape[1::2]))
    found[:, KEPT] = (counts[:, None] @ by_kind).reshape(-1, *kept.shape[1::2])
    head = np.flatnonzero(place == kinds.pipelines.known.get(_ALONE))
    found[head, AT_HEAD] = blocks.head[variant[head], None]
    of = np.array(blocks.kind_of)
    gone = (behind @ by_kind).reshape(*behind.shape[:2], *kept.shape[1::2])
    # what waits for the gradients of weights may be what was made again
    splits = np.array([0, *(split for _, split in flights.WAYS)], dtype=bool)[way]
    again = np.where(splits[:, None, None, None], 0.0, (kept[:, :1] - kept).swapaxes(1, 2))
    at_units = working[:, :, None] + again[:, of] - gone[:, of]
    has = has[:, of] & np.array(blocks.units)[of]
    # one that there is stands for those that the rank has not
    there = np.where(has, np.arange(len(of)), has.argmax(axis=1)[:, None])
    rows = np.flatnonzero(has.any(axis=1))
    found[rows, AT_UNITS:] = at_units[rows[:, None], there[rows]]
    if blocks.halfway is not None:
        kind, less = blocks.halfway
        found[:, HALFWAY] = at_units[:, kind] - less[variant][:, None]
        found[~has[:, kind], HALFWAY, :, _REPLICATED] = _NONE
    return found


def ranks_of(kinds: KindsOf, places: Sequence[int]) -> list[int]:
    """Return which of the foremost distinct ranks of each pipeline is told."""
    known = blocks_of(kinds).ranks
    others = [place for place in places if place not in known]
    if others:
        known.update(zip(others, _chosen(kinds, others), strict=True))
    return [known[place] for place in places]


def _chosen(kinds: KindsOf, places: Sequence[int]) -> Sequence[int]:
    blocks, many, foremost = blocks_of(kinds), len(kinds.pipelines.kinds.of), range(FOREMOST)
    # where there are fewer ranks the last one counts again, which is no more than itself
    cuts = [kinds.pipelines.cuts[place].rows.take(foremost, axis=0, mode="clip") for place in places]
    ranks, told, every = np.array(cuts), np.zeros(len(places), dtype=np.int64), np.arange(len(places))
    has = (ranks[..., 1 : 1 + many] @ kinds.pipelines.chain.of_kind > 0) & blocks.units
    runs = (has * blocks.runs).max(axis=-1)
    trained = ranks[..., 1 + many : 1 + many + len(DIVIDED)].sum(axis=-1)
    for rank in foremost[1:]:
        more = runs[:, rank] > _FAR_MORE * runs[every, told]
        more |= trained[:, rank] > _MORE * trained[every, told]
        told = np.where(more, rank, told)
    chosen: Sequence[int] = told.tolist()
    return chosen


def _ran(kinds: KindsOf, ways: Sequence[int]) -> tuple[Any, Any, Any]:
    """Return the repeats of each kind on ranks, of those behind the foremost of each, and which they have.

    Where virtual stages take turns, those of all that is in flight.
    """
    places = [each // WAYS for each in ways]
    cuts, told = [kinds.pipelines.cuts[place] for place in places], ranks_of(kinds, places)
    begin = [_begins(cut, rank, each % WAYS) for cut, rank, each in zip(cuts, told, ways, strict=True)]
    alive, stages = (np.array(own) for own in zip(*begin, strict=True))
    of_kind = kinds.pipelines.chain.of_kind
    has, behind = flights.behind_last(stages, of_kind)
    # a stage without blocks begins no backward
    counts = np.where(has.any(axis=1, keepdims=True), alive @ of_kind, 0.0)
    return counts, np.where(has[..., None], behind, 0.0), has


def _begins(cut: Cut, told: int, way: int) -> tuple[Any, Any]:
    """Return the repeats of blocks that a distinct rank has alive, and those of the stage that runs."""
    rank = int(cut.rows[told, 0])
    own = cut.held[:, rank]
    if not way:
        return own[0], own[0]
    shape = cut.held.shape[1], len(own)
    alive, runs = begun(shape, rank, is_bent=cut.is_bent, way=flights.WAYS[way - 1])
    return alive @ own, own[runs]
