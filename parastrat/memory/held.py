"""What the pipeline ranks of plans hold, each part for the plans that differ in what it hangs on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.distinct import standing
from parastrat.memory.activations import (
    SAVED_BY,
    cast_bytes,
    everything_bytes,
    has_moments,
    keeps_casts,
    kept_bytes,
)
from parastrat.memory.flying import (
    awaited_bytes,
    few_steps,
    in_flight,
    of_kinds,
    takes_turns,
    ways_of_turns,
)
from parastrat.memory.gathered import (
    HELD_BY,
    When,
    gathering_of,
    gathers,
    never_met_bytes,
    reducing_bytes,
    shards_parameters,
    waiting_bytes,
)
from parastrat.memory.pools import idle_pool
from parastrat.memory.running import adding_bytes, freed_bytes, loss_bytes, running_bytes
from parastrat.memory.unmade import Unmade, early, makes_gradients, unmade_of
from parastrat.ranks import RankLoad, Ranks, block_kinds, ranks_of
from parastrat.ranks.states import element_bytes, state_bytes, stepping_bytes
from parastrat.schedules import splits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.units import Bytes

#: when moments of backward are looked at; the last one only where a pipeline gathers unit by unit
WAYS = (When.FIRST, When.COPIED, When.END)


@dataclass(frozen=True, kw_only=True)
class RanksHeld:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: what hangs on states and gathering alone, with the rows that it stands for
    facts: Facts
    held: Columns
    holding: Ranks
    #: bytes that stay, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    #: what the allocator holds and nothing uses, by ``held_at``
    pool: Any
    #: of a micro-batch's gradients what waits while the next one runs, by ``held_at``
    waiting: Any
    #: what is gathered at each moment at which a rank may peak, by ``held_at``; the same when its block has
    #: run once; and, where that differs, at the end of all
    gathered: tuple[Any, ...]
    #: where each of these ways may be the one of most, by ``held_at``
    mattering: tuple[Any, ...]
    held_at: Any
    #: what all blocks of a rank keep, by ``saved_at``
    one: Any
    #: at each moment, by ``saved_at``: what exists while its block runs, what one repeat of that keeps, and
    #: what was freed before, of all that is in flight; where virtual stages take turns that is not counted
    #: beside, but less than nothing was freed
    running: Any
    #: of that what only a micro-batch makes whose gradients are added to others; None where none are
    adding: Any
    kept: Any
    freed: Any
    #: freed before the last repeat of all
    freed_at_end: Any
    #: of a unit the gradients that it makes late and later, by ``held_at``, what is gone between, and all
    #: that its backward reads, by ``saved_at``; None where no plan gathers
    reducing: tuple[Any, Any, Any, Any] | None
    #: where the rank has the block
    present: Any
    saved_at: Any

    @cached_property
    def unmade(self) -> Unmade:
        """The gradients that a first micro-batch does not find, by ``held_at``; few plans ask for them."""
        return unmade_of(self.facts, self.holding.every, self.held, self.holding.moments)

    def of_held(self, column: Any) -> Any:
        """Return for every row what is known by ``held_at``."""
        return column.take(self.held_at, axis=-1)

    def never_met(self) -> Any:
        """Return for every row by how much less a unit's gradients and what it reads are than both."""
        if self.reducing is None:
            return np.zeros((len(self.present), 1, 1))
        late, later, freed, read = self.reducing
        return never_met_bytes(*map(self.of_held, (late, later)), *map(self.of_saved, (freed, read)))

    def of_saved(self, column: Any) -> Any:
        """Return for every row what is known by ``saved_at``."""
        return column.take(self.saved_at, axis=-1)


def ranks_held(facts: Facts, columns: Columns) -> RanksHeld:
    """Return what the distinct pipeline ranks of every row hold."""
    model, element = facts.model, element_bytes(facts)
    held, held_at = standing(columns, HELD_BY)
    adds, kinds = _adds(facts, columns), block_kinds(model)
    further = {"adding": adds} if adds.any() else {}
    if takes_turns(columns).any():
        further["few_steps"] = few_steps(columns)
    if has_moments(kinds.blocks):
        further["singly"] = _singly(facts, columns)
    saved, saved_at = standing(columns.joined(further), (*SAVED_BY, *further))
    kept, casts = kept_bytes(facts, saved), cast_bytes(facts, saved)
    of_held, of_saved = ranks_of(model, held), ranks_of(model, saved)
    load, same = of_held.every, of_saved.every
    soon = bool(np.any(early(columns, in_flight(columns, np.zeros_like(columns.pp)))))
    mattering = _mattering(facts, held, soon=soon)
    own, ways = of_held.moments, WAYS if mattering[-1].any() else WAYS[:2]
    gathering = gathering_of(kinds, load, held, element, own, facts.stack)
    moments = of_saved.moments
    everything = everything_bytes(facts, kept, saved)
    # what is made again for a block that runs may be among what waits for the gradients of weights
    there = np.where(splits(saved) & takes_turns(saved), kept, everything)
    by_kind = running_bytes(facts, kept, there, saved)
    running = by_kind[moments.kinds][:, None]
    if np.any(casts):
        # at the end of a forward its context still remembers the casts of all that is made again
        again = casts * ~keeps_casts(facts, saved)
        every = sum(each * count for each, count in zip(again, same.repeats, strict=True))
        ended = every / saved.virtual_stages + loss_bytes(facts, by_kind, saved)[moments.kinds][:, None]
        running = np.where(moments.first & (every > 0), np.maximum(running, ended), running)
    adding = None
    if adds.any():
        added = adding_bytes(facts, kept, there, saved)[moments.kinds][:, None]
        adding = np.maximum(added - running, 0.0) * saved.adding
        running, adding = running + adding, np.broadcast_to(adding, moments.present.shape)
    one = of_kinds(kept, same.repeats)
    freed = sum(moments.freed[:, kind] * each for kind, each in enumerate(kept))
    of_moments = kept[moments.kinds][:, None]
    at_end = one - of_moments
    turning = np.flatnonzero(takes_turns(saved))
    if turning.size:
        alive, ended = _in_turn(facts, saved.at(turning), of_saved.among(turning), everything[:, turning])
        if saved.few_steps.any():
            all_of = one[:, turning] * saved.few_steps[turning]
            alive = np.where(all_of > 0, np.minimum(alive, all_of - freed[..., turning]), alive)
        freed[..., turning], at_end[..., turning] = -alive, -ended - of_moments[..., turning]
    reducing = None
    if gathers(held).any():
        halfway = freed_bytes(facts, saved)[moments.kinds][:, None]
        reducing = *reducing_bytes(kinds, held, element, own), halfway, everything[moments.kinds][:, None]
    return RanksHeld(
        load=same,
        facts=facts,
        held=held,
        holding=of_held,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        pool=idle_pool(facts, load, held),
        waiting=waiting_bytes(facts, load, held, element),
        gathered=tuple(gathering.at(when, held.reshard_after_forward) for when in ways),
        mattering=mattering,
        held_at=held_at,
        one=one,
        running=np.broadcast_to(running, moments.present.shape),
        adding=adding,
        kept=of_moments,
        freed=freed,
        freed_at_end=at_end,
        reducing=reducing,
        present=moments.present,
        saved_at=saved_at,
    )


def _in_turn(facts: Facts, c: Columns, ranks: Ranks, everything: Bytes) -> tuple[Bytes, ...]:
    """Return what virtual stages hold as blocks run backward, and when the first of them is through.

    Args:
        facts: the job.
        c: plans whose virtual stages take turns.
        ranks: of their pipelines.
        everything: of each kind of block what is kept and what is made again.
    """
    kept, held = kept_bytes(facts, c), ranks.turning(ways_of_turns(c))
    each = np.concatenate([kept, awaited_bytes(facts, c, everything - kept)])
    at_moments = held.at_kinds[:, ranks.moments.kinds]
    return tuple(
        np.maximum.reduce([of_kinds(each, np.moveaxis(way, -3, 0)) for way in counts])
        for counts in (at_moments, held.ending)
    )


def _adds(facts: Facts, c: Columns) -> Any:
    """Return where whole gradients of a micro-batch are added to those of one before, as torch does."""
    alone, several = (c.dp == 1) | (c.pp > 1), c.gradient_accumulation_steps > 1
    return (alone & several & ~shards_parameters(c) & (not facts.stack.kernels.fused)).astype(np.int64)


def _singly(facts: Facts, c: Columns) -> Any:
    """Return where gradients come one by one, to none of a micro-batch before."""
    return (makes_gradients(facts, c) & (c.gradient_accumulation_steps == 1)).astype(np.int64)


def _mattering(facts: Facts, held: Columns, *, soon: bool) -> tuple[Any, ...]:
    """Return where each way to meet the moments of backward may be the one at which most is held.

    What a block's first repeat has made comes beside what others will make only where gradients come with
    their units: not under a pipeline that reduces once a step, and not in buckets. The end differs where a
    pipeline gathers unit by unit, and where gradients come one by one, or unit by unit: few ranks' shares
    of them may be more than activations that are made again. Both may where gradients that wait for the end
    of a step are not there yet, which some plans' are not if it is ``soon``.
    """
    one_by_one, piped = makes_gradients(facts, held), held.pp > 1
    unit_by_unit = held.reshard_after_forward & piped & shards_parameters(held)
    always, reducing = np.ones(len(held.pp), dtype=bool), gathers(held) & (~piped | soon)
    return always, one_by_one | reducing, one_by_one | unit_by_unit | reducing


def ways(ranks: RanksHeld) -> Iterator[tuple[Any, Any, bool, When]]:
    """Yield what is gathered at each moment, what was freed, whether no unit has reduced, and when that is.

    Moments may be met as the first repeat of a block in backward, as the second, and as the last.
    """
    freed = ranks.freed, ranks.freed + ranks.kept, ranks.freed_at_end
    return zip(ranks.gathered, freed, (True, False, False), WAYS, strict=False)
