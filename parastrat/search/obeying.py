"""What rules leave of a space, each judged on the smallest table that has what it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.distinct import NUMBERED, distinct
from parastrat.rules import rejection_masks
from parastrat.search.rows import Constraints, plan_at, rungs_of, strategies_of, with_facts
from parastrat.search.space import (
    batch_columns,
    mesh_columns,
    option_counts,
    plain_schedule,
    policies,
    schedule_columns,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.plan import Offload, Plan
    from parastrat.rules import PlanRule
    from parastrat.units import Mask


#: the simplest options, for rows whose own are not chosen yet
PLAIN = {"recompute": 0, "reshard_after_forward": False, "pp_schedule": -1, "virtual_stages": 1}

#: what tells batches and schedules apart, and what follows from it
_BATCH = ("pp", "dp", "micro_batch_size", "virtual_stages")
_OF_BATCH = ("gradient_accumulation_steps", "pp_schedule")


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
        return int(np.sum(np.broadcast_to(self.plans, self.rows.shape)))

    def of_rung(self, rung: int) -> Rejected | None:
        """Return what of it is on a rung of the ladder, if anything."""
        own = self.columns.rung[self.rows] == rung
        if not own.any():
            return None
        plans = self.plans[own] if getattr(self.plans, "shape", ()) else self.plans
        return replace(self, rows=self.rows[own], plans=plans)

    @property
    def example(self) -> Plan:
        """The first of the plans, with the simplest options where none were chosen yet."""
        row = self.columns.at(self.rows[:1])
        return plan_at(row.joined({name: value for name, value in PLAIN.items() if not row.has(name)}), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeying:
    """The rows that no rule rejects which reads neither options nor memory."""

    #: meshes with micro-batch and schedule, and with ``rung`` and ``strategy`` as numbers
    columns: Columns
    #: all meshes, among which ``mesh`` is each row's place
    meshes: Columns
    rejected: tuple[Rejected, ...]
    #: the rules that had all they read
    judged: frozenset[PlanRule]
    #: plans of the whole space
    considered: int


def obeying(facts: Facts, fixed: Constraints, chosen: Columns | None = None) -> Obeying:
    """Return the rows of a space that rules allow, and what they reject; of chosen meshes if any are."""
    meshes = _told(fixed, chosen or meshes_of(facts, fixed))
    on_meshes = dict(rejection_masks(meshes))
    batches = plain_schedule(batch_columns(facts, fixed, meshes))
    on_batches = dict(_masks_of_batches(batches, on_meshes))
    of_mesh = batches.mesh
    masks = {
        rule: np.broadcast_to(mask, len(meshes.pp))[of_mesh]
        for rule, mask in on_meshes.items()
        if np.any(mask)
    }
    columns, rejected = attributed(batches, masks | on_batches)
    left = sum(entry.count for entry in rejected)
    first = len(columns.pp)
    columns = schedule_columns(columns)
    considered = left + int(option_counts(fixed, columns).sum())
    columns, more = _interleaved(columns, on_meshes, first, len(policies(fixed)))
    return Obeying(
        columns=columns,
        meshes=meshes,
        rejected=(*rejected, *more),
        judged=frozenset([*on_meshes, *on_batches]),
        considered=considered,
    )


def meshes_of(facts: Facts, fixed: Constraints) -> Columns:
    """Return the meshes that the constraints allow, of whatever strategy."""
    return with_facts(facts, fixed, mesh_columns(facts, fixed))


def offloading(allowed: Obeying, offload: Offload) -> Obeying:
    """Return the rows that rules leave if states are kept elsewhere: those that read it are asked again."""
    changed = {"offload": code_of(offload)}
    columns, meshes = allowed.columns.joined(changed), allowed.meshes.joined(changed)
    others = {rule for rule in allowed.judged if not _reads(rule, columns, "offload")}
    kept, rejected = attributed(columns, dict(rejection_masks(columns, others)))
    return replace(allowed, columns=kept, meshes=meshes, rejected=(*allowed.rejected, *rejected))


def _reads(rule: PlanRule, columns: Columns, name: str) -> bool:
    """Return whether a rule reads a column."""
    row = columns.at(np.arange(len(columns.pp))[:1])
    rule.mask(row)
    return row.was_read(name)


def _told(fixed: Constraints, columns: Columns) -> Columns:
    """Return meshes of the strategy that the user named if any, with what tells them apart."""
    codes = strategies_of(columns)
    shards = columns.joined({"dp_shard": columns.dp_shard * columns.cp})
    columns = columns.joined(
        {
            "strategy": codes,
            "rung": rungs_of(columns),
            "width": distinct(columns, NUMBERED["width"])[1],
            "layout": distinct(columns, NUMBERED["layout"])[1],
            "share": distinct(columns, NUMBERED["share"])[1],
            # replicas follow from the others
            "sharding": distinct(shards, ("pp", "dp_shard", "tp", "ep"))[1],
        }
    )
    if fixed.strategy is None:
        return columns
    plans = columns.joined({**PLAIN, "micro_batch_size": 1, "gradient_accumulation_steps": 1})
    wanted = [
        code
        for code in sorted(set(codes.tolist()))
        if plan_at(plans, int(np.argmax(codes == code))).strategy == fixed.strategy
    ]
    return columns.at(np.flatnonzero(np.isin(codes, wanted)))


def _interleaved(
    columns: Columns, judged: Mapping[PlanRule, Mask], first: int, plans: int
) -> tuple[Columns, tuple[Rejected, ...]]:
    """Judge the rows of interleaved schedules, which follow those of the first, by what was not of meshes.

    Each stands for several plans, whose recompute is not chosen yet.
    """
    many = len(columns.pp)
    if many == first:
        return columns, ()
    later = columns.at(np.arange(first, many)).joined({"source": np.arange(first, many)})
    kept, rejected = attributed(later, dict(_masks_of_batches(later, judged)), plans)
    if not rejected:
        return columns, ()
    return columns.at(np.concatenate([np.arange(first), kept.source])), rejected


def _masks_of_batches(columns: Columns, judged: Container[PlanRule]) -> Iterator[tuple[PlanRule, Mask]]:
    """Yield the rules that read of a mesh its stages and data ranks alone, each with what it forbids.

    They are asked once for what they can tell apart. Other rules find a column unknown, and wait.
    """
    few, at = distinct(columns, _BATCH)
    own = Columns({**columns.numbers(), **{name: getattr(few, name) for name in (*_BATCH, *_OF_BATCH)}})
    for rule, mask in rejection_masks(own, judged):
        yield rule, mask[at] if getattr(mask, "shape", ()) else mask


def attributed(
    columns: Columns, masks: Mapping[PlanRule, Mask], plans: Any = 1
) -> tuple[Columns, tuple[Rejected, ...]]:
    """Return the rows that no mask names, and per rule those that it named first, in the order of codes."""
    alive = np.ones(len(columns.pp), dtype=bool)
    rejected = []
    for rule in sorted(masks, key=lambda rule: rule.code):
        rows = np.flatnonzero(alive & masks[rule])
        if len(rows):
            own = plans[rows] if getattr(plans, "shape", ()) else plans
            rejected.append(Rejected(rule=rule, columns=columns, rows=rows, plans=own))
            alive[rows] = False
    return (columns.at(np.flatnonzero(alive)) if rejected else columns), tuple(rejected)
