"""Rows with all their options, judged by memory, rules and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from parastrat.cost import step_s
from parastrat.memory import memory_margin, memory_totals
from parastrat.memory.host import host_columns
from parastrat.plan import Recompute
from parastrat.rules import rejection_masks
from parastrat.search.bounded import NEVER
from parastrat.search.obeying import Rejected, attributed
from parastrat.search.rows import Constraints, stacked
from parastrat.search.space import policies, recompute_columns, reshard_columns

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.search.bounded import Bounded, Searched

#: so few plans are judged together, the dominated among them too
_FEW = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Plans of some rows: those that can run, and those that cannot.

    The former have ``step`` in seconds, whether they are ``roomy``, and ``source``, the place of their row.
    """

    columns: Columns
    rejected: tuple[Rejected, ...]
    #: plans that were not judged, because a floor of their memory does not fit
    bounded: tuple[Rejected, ...]

    def least_steps(self, rows: int, *, roomy: bool) -> Any:
        """Return each row's least step, infinite where no plan of it can run (with the margin)."""
        columns, least = self.columns, np.full(rows, np.inf)
        np.minimum.at(least, columns.source, np.where(columns.roomy | (not roomy), columns.step, np.inf))
        return least


def with_memory(facts: Facts, columns: Columns) -> Columns:
    """Return plans with their memory, and whether they fit with its margin of error."""
    total, capacity = memory_totals(facts, columns), facts.hardware.device.usable_memory_bytes
    margin = memory_margin(facts, total)
    return columns.joined(
        {
            "memory_total": total,
            "memory_margin": margin,
            "memory_capacity": capacity,
            "roomy": total + margin <= capacity,
            **host_columns(facts, columns),
        }
    )


def judge(rows: Bounded, *, alone: bool = False) -> Judged:
    """Judge the plans of rows by the rules that were not, and time those that can run.

    Those that can are asked for ``alone``, or with those that a floor of their memory leaves out.
    """
    space, asked = rows.space, rows.space.allowed.judged
    options, floors = _options(rows)
    may_fit = space.may_fit(floors, roomy=False)
    columns = _in_memory(space, options, floors)
    able, rejected = attributed(columns, dict(rejection_masks(columns, asked)))
    kept = able.at(np.flatnonzero(_may_win(able, len(options.pp))))
    step = np.zeros(0)
    if len(kept.pp):
        step = step_s(space.facts, kept, space.work.of(kept))
    bounded: tuple[Rejected, ...] = ()
    if not (alone or may_fit.all()):
        misfits = _plans(options, space.fixed, ~may_fit)
        # what has no floor is removed by another rule than those of memory
        least = np.where(floors < NEVER, floors, 0)[~may_fit]
        known = {"memory_total": least, "memory_capacity": columns.memory_capacity}
        _, bounded = attributed(misfits, dict(rejection_masks(misfits.joined(known), asked)))
    return Judged(columns=kept.joined({"step": step}), rejected=rejected, bounded=bounded)


class Needed(NamedTuple):
    """What some plans need at least."""

    #: bytes of a device, of those that can run if any can
    size: float
    fits: bool


def needed_at_least(rows: Bounded) -> Needed:
    """Return what plans of some rows need at least, whatever they take."""
    return _needed(rows.space, _in_memory(rows.space, *_options(rows)))


def needed_by_first(rows: Bounded) -> Needed:
    """Return what one plan of the first row needs: under the policy with the least floor, resharding."""
    options, floors = _options(rows)
    chosen = np.zeros(floors.shape, dtype=bool)
    # rows with resharding are the first, where that is a choice
    chosen[floors[:, 0].argmin(), 0] = True
    return _needed(rows.space, with_memory(rows.space.facts, _plans(options, rows.space.fixed, chosen)))


def _needed(space: Searched, columns: Columns) -> Needed:
    """Return what those plans need at least that can run, or that cannot if none can."""
    able, _ = attributed(columns, dict(rejection_masks(columns, space.allowed.judged)))
    fits = len(able.pp) > 0
    return Needed(float((able if fits else columns).memory_total.min()), fits)


def _options(rows: Bounded) -> tuple[Columns, Any]:
    """Return rows with resharding, numbered, and the floors of their memory by recompute policy."""
    options = reshard_columns(rows.columns.joined({"source": np.arange(len(rows.columns.pp))}))
    return options.joined({"option": np.arange(len(options.pp))}), rows.memory.take(options.source, axis=1)


def _in_memory(space: Searched, options: Columns, floors: Any) -> Columns:
    """Return the plans that may win of rows with resharding, with their memory, by floors of it."""
    if not space.limited:
        return _fitting(options, space.fixed)
    return _undominated(space, options, *(space.may_fit(floors, roomy=roomy) for roomy in (False, True)))


def _may_win(able: Columns, options: int) -> Any:
    """Return which of the plans that can run may be the best of plans that differ in recompute alone.

    The more a policy computes again, the slower and the less simple is the plan. So the first policy that
    fits with its margin wins over those after it; plans that fit without are asked for where none does.
    """
    order = able.recompute + np.where(able.roomy, 0, len(Recompute))
    first = np.full(options, 2 * len(Recompute))
    np.minimum.at(first, able.option, order)
    return order == first[able.option]


def _plans(options: Columns, fixed: Constraints, chosen: Any) -> Columns:
    """Return the plans of rows with resharding that are chosen of each recompute policy."""
    rows = [own.nonzero()[0] for own in chosen]
    return recompute_columns(options, dict(zip(policies(fixed), rows, strict=True)))


def _fitting(options: Columns, fixed: Constraints) -> Columns:
    """Return the plans that may win of rows with resharding if memory is no limit.

    What is kept costs no time: those of the policy that computes least again.
    """
    memory = dict.fromkeys(("memory_total", "memory_margin", "memory_capacity"), 0)
    chosen = recompute_columns(options, {policies(fixed)[0]: options.option})
    return chosen.joined({**memory, "roomy": np.ones(len(chosen.pp), dtype=bool)})


def _undominated(space: Searched, options: Columns, may_fit: Any, likely: Any) -> Columns:
    """Return the plans that may win of rows with resharding, with their memory.

    Of plans that differ in recompute alone, the first that fits with its margin is at least as fast as
    those after it, and goes before them where times are equal: those are left out. By its floor it is known
    which one that may be; mostly it is.
    """
    facts, fixed = space.facts, space.fixed
    if len(may_fit) == 1 or may_fit.sum() <= _FEW or not likely.any():
        return with_memory(facts, _plans(options, fixed, may_fit))
    first = np.arange(len(may_fit))[:, None] == likely.argmax(axis=0)
    first &= likely
    likeliest = with_memory(facts, _plans(options, fixed, first))
    dominated = np.zeros(len(options.pp), dtype=bool)
    dominated[likeliest.option[likeliest.roomy]] = True
    others = may_fit & ~first & ~dominated
    if not others.any():
        return likeliest
    return stacked([likeliest, with_memory(facts, _plans(options, fixed, others))])
