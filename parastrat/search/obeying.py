"""What rules leave of a space, each judged on the smallest table that has what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.distinct import NUMBERED, distinct
from parastrat.elementwise import some
from parastrat.rules import rejection_masks
from parastrat.search.batches import OF_BATCH, Batches, of_shares
from parastrat.search.meshes import meshes_of
from parastrat.search.rows import Constraints, plan_at, plan_of_row, unnamed
from parastrat.search.space import (
    batch_columns,
    option_counts,
    plain_schedule,
    policies,
    schedule_columns,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping, Sequence

    from parastrat.case import Facts
    from parastrat.plan import Offload, Plan
    from parastrat.rules import PlanRule
    from parastrat.units import Mask


#: the simplest options, for rows whose own are not chosen yet
PLAIN = {"recompute": 0, "reshard_after_forward": False, "pp_schedule": -1, "virtual_stages": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Rows that one rule removed."""

    rule: PlanRule
    columns: Columns
    rows: Any
    #: plans that each of the rows stands for
    plans: Any = 1

    @property
    def count(self) -> int:
        """Plans that the rule removed."""
        return int(self.plans.sum() if getattr(self.plans, "shape", ()) else self.plans * len(self.rows))

    def of_rung(self, rung: int) -> Rejected | None:
        """Return what of it is on a rung of the ladder, if anything."""
        own = self.columns.rung[self.rows] == rung
        return self.chosen(own) if own.any() else None

    def chosen(self, wanted: Any) -> Rejected:
        """Return those of the rows that are wanted."""
        plans = self.plans[wanted] if getattr(self.plans, "shape", ()) else self.plans
        return replace(self, rows=self.rows[wanted], plans=plans)

    @property
    def example(self) -> Plan:
        """The first of the plans, with the simplest options where none were chosen yet."""
        plain = {name: value for name, value in PLAIN.items() if not self.columns.has(name)}
        return plan_of_row(self.columns.joined(plain), int(self.rows[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeying:
    """The plans that no rule rejects which reads neither options nor memory: meshes, and their batches."""

    #: with ``rung`` and ``strategy`` as numbers, and ``share``, by which batches are told
    meshes: Columns
    batches: Batches
    #: what rules reject, where that is asked for
    rejected: tuple[Rejected, ...]
    #: the rules that had all they read
    judged: frozenset[PlanRule]
    #: plans of the whole space, where that is asked for
    considered: int

    def rows(self, meshes: Any) -> Columns:
        """Return chosen meshes with micro-batch and schedule."""
        return self.batches.of(self.meshes, meshes)

    @property
    def columns(self) -> Columns:
        """All meshes with micro-batch and schedule."""
        return self.rows(np.arange(len(self.meshes.pp)))

    @property
    def counts(self) -> Any:
        """Rows of each mesh."""
        return self.batches.counts[self.meshes.share]


def obeying(
    facts: Facts, fixed: Constraints, chosen: Columns | None = None, *, alone: bool = False
) -> Obeying:
    """Return the plans of a space that rules allow, of chosen meshes if any are.

    They are asked for ``alone``, or with what rules reject, and how many plans the whole space has.
    """
    meshes = _of_strategy(fixed, chosen or meshes_of(facts, fixed))
    shares, share = distinct(meshes, NUMBERED["share"])
    meshes, many = meshes.joined({"share": share}), len(shares.pp)
    batches = batch_columns(facts, fixed, shares)
    batches = plain_schedule(batches.joined({"share": batches.mesh}))
    if fixed.recompute is not None:
        # rules that read schedules with it need not wait
        batches = batches.joined({"recompute": code_of(fixed.recompute)})
    every = of_shares(batches, many)
    meshes = _chosen(meshes, every.counts[share] > 0)
    on_meshes = dict(rejection_masks(meshes))
    rejected: list[Rejected] = []
    if alone:
        meshes = _chosen(meshes, unnamed(on_meshes, len(meshes.pp)))
    else:
        meshes, rejected = _allowed(meshes, on_meshes, every)
    on_batches = dict(_masks_of_batches(batches, on_meshes))
    batches, early = attributed(batches, on_batches)
    schedules, plain = schedule_columns(batches, fixed)
    kept, late = _interleaved(schedules, on_meshes, plain)
    considered = 0
    if not alone:
        rejected += _on(meshes, early, many)
        counts = np.bincount(schedules.share, minlength=many)
        considered = sum(entry.count for entry in rejected)
        considered += int((option_counts(fixed, meshes) * counts[meshes.share]).sum())
        rejected += [replace(entry, plans=len(policies(fixed))) for entry in _on(meshes, late, many)]
    left = of_shares(kept, many)
    return Obeying(
        meshes=_chosen(meshes, left.counts[meshes.share] > 0),
        batches=left,
        rejected=tuple(rejected),
        judged=frozenset([*on_meshes, *on_batches]),
        considered=considered,
    )


def _chosen(columns: Columns, wanted: Any) -> Columns:
    return columns if wanted.all() else columns.at(np.flatnonzero(wanted))


def _allowed(
    meshes: Columns, masks: Mapping[PlanRule, Mask], batches: Batches
) -> tuple[Columns, list[Rejected]]:
    """Return the meshes that rules allow, and what they reject: each mesh with all batches of its share."""
    _, rejected = attributed(batches.first_of(meshes), masks, batches.counts[meshes.share])
    alive = np.ones(len(meshes.pp), dtype=bool)
    for entry in rejected:
        alive[entry.rows] = False
    return _chosen(meshes, alive), list(rejected)


def _on(meshes: Columns, rejected: Sequence[Rejected], shares: int) -> list[Rejected]:
    """Return the rows of all meshes of which rules removed batches."""
    every, found = np.arange(len(meshes.pp)), []
    for entry in rejected:
        rows = of_shares(entry.columns.at(entry.rows), shares).of(meshes, every)
        if len(rows.mesh):
            found.append(replace(entry, columns=rows, rows=np.arange(len(rows.mesh))))
    return found


def offloading(allowed: Obeying, offload: Offload) -> Obeying:
    """Return the plans that rules leave if states are kept elsewhere, which some rules read."""
    meshes = allowed.meshes.joined({"offload": code_of(offload)})
    row = allowed.batches.of(meshes, np.arange(len(meshes.pp))[:1])
    others = {rule for rule in allowed.judged if not _reads(rule, row, "offload")}
    again = dict(rejection_masks(meshes, others))
    meshes, rejected = _allowed(meshes, again, allowed.batches)
    return replace(
        allowed,
        meshes=meshes,
        rejected=(*allowed.rejected, *rejected),
        # rules that read batches as well wait for plans
        judged=frozenset([*others, *again]),
    )


def _reads(rule: PlanRule, columns: Columns, name: str) -> bool:
    """Return whether a rule reads a column, of rows that nothing else read."""
    row = columns.at(np.arange(len(columns.pp)))
    rule.mask(row)
    return row.was_read(name)


def _of_strategy(fixed: Constraints, columns: Columns) -> Columns:
    """Return meshes of the strategy that the user named if any."""
    if fixed.strategy is None:
        return columns
    codes = columns.strategy
    plans = columns.joined({**PLAIN, "micro_batch_size": 1, "gradient_accumulation_steps": 1})
    wanted = [
        code
        for code in sorted(set(codes.tolist()))
        if plan_at(plans, int(np.argmax(codes == code))).strategy == fixed.strategy
    ]
    return columns.at(np.flatnonzero(np.isin(codes, wanted)))


def _interleaved(
    columns: Columns, judged: Container[PlanRule], first: int
) -> tuple[Columns, tuple[Rejected, ...]]:
    """Judge the rows of interleaved schedules, behind so many of the first, by rules that were not."""
    many = len(columns.pp)
    if many == first:
        return columns, ()
    later = columns.at(np.arange(first, many)).joined({"source": np.arange(first, many)})
    kept, rejected = attributed(later, dict(_masks_of_batches(later, judged)))
    if not rejected:
        return columns, ()
    return columns.at(np.concatenate([np.arange(first), kept.source])), rejected


def _masks_of_batches(columns: Columns, judged: Container[PlanRule]) -> Iterator[tuple[PlanRule, Mask]]:
    """Yield the rules that read of a mesh its stages and data ranks alone, each with what it forbids.

    Other rules find a column unknown, and wait.
    """
    own = {name: getattr(columns, name) for name in ("pp", "dp", *OF_BATCH)}
    return rejection_masks(Columns({**columns.numbers(), **own}), judged)


def attributed(
    columns: Columns, masks: Mapping[PlanRule, Mask], plans: Any = 1
) -> tuple[Columns, tuple[Rejected, ...]]:
    """Return the rows that no mask names, and per rule those that it named first, in the order of codes."""
    alive = np.ones(len(columns.pp), dtype=bool)
    rejected = []
    for rule in sorted(masks, key=lambda rule: rule.code):
        # most name none
        rows = (alive & masks[rule]).nonzero()[0] if some(masks[rule]) else ()
        if len(rows):
            own = plans[rows] if getattr(plans, "shape", ()) else plans
            rejected.append(Rejected(rule=rule, columns=columns, rows=rows, plans=own))
            alive[rows] = False
    return (columns.at(np.flatnonzero(alive)) if rejected else columns), tuple(rejected)
