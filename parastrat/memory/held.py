"""What the pipeline ranks of plans hold, each part for the plans that differ in what it hangs on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.distinct import distinct
from parastrat.memory.activations import SAVED_BY, kept_bytes, running_bytes
from parastrat.memory.gathered import HELD_BY, When, gathered_bytes, shards_parameters, waiting_bytes
from parastrat.memory.pools import gathering_pool, pooled
from parastrat.ranks import RankLoad, block_kinds, ranks_of
from parastrat.ranks.states import element_bytes, state_bytes, stepping_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Facts
    from parastrat.columns import Columns

#: when moments of backward are looked at; the last one only where a pipeline gathers unit by unit
WAYS = (When.FIRST, When.COPIED, When.END)


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksHeld:
    """The pipeline ranks of every row, in arrays with ranks before rows.

    What hangs on few columns stands for the distinct rows of those, with each row's place among them.
    """

    load: RankLoad
    #: bytes that stay, by ``held_at``
    states: dict[str, Any]
    optimizer_step: Any
    #: what the allocator holds for gathering, by ``held_at``
    pool: Any
    #: of a micro-batch's gradients what waits while the next one runs, by ``held_at``
    waiting: Any
    #: what is gathered at each moment at which a rank may peak, by ``held_at``; the same when its block has
    #: run once; and, where that differs, at the end of all
    gathered: tuple[Any, ...]
    held_at: Any
    #: what all blocks of a rank keep, by ``saved_at``
    one: Any
    #: at each moment, by ``saved_at``: what exists while its block runs, what one repeat of that keeps, and
    #: what was freed before
    running: Any
    kept: Any
    freed: Any
    #: where nothing ran backward yet, and where the rank has the block
    first: Any
    present: Any
    saved_at: Any

    def of_held(self, column: Any) -> Any:
        """Return for every row what is known by ``held_at``."""
        return column.take(self.held_at, axis=-1)

    def of_saved(self, column: Any) -> Any:
        """Return for every row what is known by ``saved_at``."""
        return column.take(self.saved_at, axis=-1)


def ranks_held(facts: Facts, columns: Columns) -> RanksHeld:
    """Return what the distinct pipeline ranks of every row hold."""
    model, element = facts.model, element_bytes(facts)
    held, held_at = distinct(columns, HELD_BY)
    saved, saved_at = distinct(columns, SAVED_BY)
    kinds = block_kinds(model)
    kept = kept_bytes(kinds.blocks, saved)
    of_held, of_saved = ranks_of(model, held), ranks_of(model, saved)
    load, same = of_held.every, of_saved.every
    # the end differs where a pipeline gathers unit by unit
    unit_by_unit = np.any(held.reshard_after_forward & (held.pp > 1) & shards_parameters(held))

    own, ways = of_held.moments.at(of_held.at), WAYS if unit_by_unit else WAYS[:2]
    moments = of_saved.moments.at(of_saved.at)
    freed = sum(moments.freed[:, kind] * each for kind, each in enumerate(kept))
    return RanksHeld(
        load=same,
        states=state_bytes(load, held, element),
        optimizer_step=stepping_bytes(load, held, element),
        pool=gathering_pool(kinds, load, held, element) * pooled(facts),
        waiting=waiting_bytes(facts, load, held, element),
        gathered=tuple(gathered_bytes(kinds, load, held, element, own, when) for when in ways),
        held_at=held_at,
        one=sum(each * count for each, count in zip(kept, same.repeats, strict=True)),
        running=running_bytes(kinds.blocks, kept, saved)[moments.kinds][:, None],
        kept=kept[moments.kinds][:, None],
        freed=freed,
        first=moments.first,
        present=moments.present,
        saved_at=saved_at,
    )


def ways(ranks: RanksHeld) -> Iterator[tuple[Any, Any, bool]]:
    """Yield what is gathered at each moment, what was freed before, and whether no unit has reduced yet.

    Moments may be met as the first repeat of a block in backward, as the second, and under a pipeline that
    reshards as the last.
    """
    freed = ranks.freed, ranks.freed + ranks.kept, ranks.one - ranks.kept
    return zip(ranks.gathered, freed, (True, False, False), strict=False)
