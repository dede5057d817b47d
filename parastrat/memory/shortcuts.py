"""What one plan holds, by code that is written for plans of a kind as soon as enough of them were met.

Plans of a kind choose the same and have the same ranks. They differ in sizes, which code is given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alike import code_of_plans
from parastrat.memory.alone import (
    fullest_rank,
    moments_of,
    parts_alone,
    parts_at,
    plans_alone,
    ranks_of,
    row_alone,
)
from parastrat.memory.ceilings import ceilings
from parastrat.memory.held import ranks_read
from parastrat.remembered import remembered
from parastrat.straight import straight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from parastrat.memory.alone import RankMoments
    from parastrat.memory.plans import Job, Plans
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.turning import Turning
    from parastrat.straight import Code
    from parastrat.units import Bytes

#: what plans of a kind differ in, and choices that formulas take in which they do not
_SIZES = "dp", "dp_shard", "cp", "tp", "ep", "micro_batch_size", "gradient_accumulation_steps"
_CHOICES = (
    "pp",
    "virtual_stages",
    "pp_schedule",
    "reshard_after_forward",
    "sequence_parallel",
    "loss_parallel",
    "recompute",
    "cp_method",
)
_sizes, _choices = itemgetter(*_SIZES), itemgetter(*_CHOICES)
#: to write code takes about as long as to look at so many plans without
_OFTEN = 64
#: kinds that are kept
_MOST = 256


@dataclass(slots=True)
class Shortcut:
    """Code for plans of one kind."""

    job: Job
    #: what ``code_of_plans`` makes of each, and the columns of one
    alike: int
    numbers: Mapping[str, Any]
    ranks: Sequence[Rank]
    turning: Turning | None
    #: how many were looked at without code
    met: int = 0
    #: by the formula, and of which rank and moment it is
    codes: dict[tuple[Any, ...], Code] = field(default_factory=dict)

    def parts(self, sizes: Sequence[int]) -> Sequence[Bytes]:
        """Return ``PARTS`` where a plan with some sizes holds most, bytes."""

        def look(rank: int) -> tuple[Bytes, int, int]:
            totals = self._code(_totals, rank)(*sizes)
            most = max(totals)
            return most, rank, totals.index(most)

        if len(self.ranks) == 1:
            found = look(0)
        else:
            highest = None if self.turning else self._code(_ceilings)(*sizes)
            found = fullest_rank(look, highest, len(self.ranks))
        return self._code(_parts, *found[1:])(*sizes)

    def _code(self, formula: Callable[..., Sequence[Bytes]], *at: int) -> Code:
        """Return code of a formula that takes a plan of the kind, and the places of a rank and a moment."""
        code = self.codes.get((formula, *at))
        if code is None:
            code = straight(lambda *sizes: formula(self, self._plan(sizes), *at), _SIZES)
            self.codes[formula, *at] = code
        return code

    def _plan(self, sizes: Sequence[Any]) -> Plans:
        numbers = {**self.numbers, **dict(zip(_SIZES, sizes, strict=True))}
        return plans_alone(self.job, row_alone(self.job, numbers), self.alike)


@remembered
def shortcuts_of(job: Job) -> dict[tuple[Any, ...], Shortcut]:
    """Return the shortcuts of a job's kinds of plans as they are written."""
    del job
    return {}


def parts_of_plan(job: Job, numbers: Mapping[str, Any]) -> Sequence[Bytes]:
    """Return ``PARTS`` where one plan, told by its columns, holds most; bytes."""
    c = row_alone(job, numbers)
    alike = code_of_plans(c)
    # whether stages that may take turns have few micro-batches this does not tell
    few = c.pp > 1 and c.gradient_accumulation_steps <= c.pp
    kind = alike, few, *_choices(numbers)
    shortcuts = shortcuts_of(job)
    known = shortcuts.get(kind)
    if known is None:
        if len(shortcuts) >= _MOST:
            shortcuts.clear()
        ranks = ranks_of(plans_alone(job, c, alike))
        known = shortcuts[kind] = Shortcut(job, alike, numbers, *ranks)
    if known.met >= _OFTEN:
        return known.parts(_sizes(numbers))
    known.met += 1
    return parts_alone(plans_alone(job, c, alike))


def _ceilings(kind: Shortcut, plans: Plans) -> Sequence[Bytes]:
    return ceilings(plans, kinds_bytes(plans), kind.ranks, ranks_read(plans, None))


def _totals(kind: Shortcut, plans: Plans, rank: int) -> Sequence[Bytes]:
    return _moments(kind, plans, rank).totals


def _parts(kind: Shortcut, plans: Plans, rank: int, moment: int) -> Sequence[Bytes]:
    return parts_at(plans, _moments(kind, plans, rank), moment)


def _moments(kind: Shortcut, plans: Plans, rank: int) -> RankMoments:
    return moments_of(plans, kinds_bytes(plans), kind.ranks[rank], ranks_read(plans, None), kind.turning)
