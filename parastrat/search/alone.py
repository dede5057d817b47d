"""What one device of several does alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.assess import (
    Estimated,
    assess,
    assess_together,
    cases_of,
    estimated,
    plans_table,
    widest_of,
)
from parastrat.columns import Columns, code_of
from parastrat.hardware import DeviceType
from parastrat.memory.host import host_columns
from parastrat.ranks.states import may_fit
from parastrat.rules import rejection_masks
from parastrat.search.bounded import Searched, searched
from parastrat.search.misfits import nearest_of
from parastrat.search.obeying import attributed, obeying
from parastrat.search.space import option_columns
from parastrat.search.survey import Survey
from parastrat.tables import facts_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.assess import BlocksOf
    from parastrat.case import Case, Facts
    from parastrat.hardware import Hardware
    from parastrat.plan import Plan
    from parastrat.search.rows import Constraints


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """The plans of one device of several that no rule rejects, with their estimates.

    They differ in micro-batch and recompute alone.
    """

    #: of the one device
    facts: Facts
    space: Searched
    columns: Columns
    #: the estimates, which begin at the row ``first``
    found: Estimated
    first: int

    def survey(self) -> Survey:
        """Return the plans that can run."""
        total, margin = (self.found.memory[name][self.first :] for name in ("total", "margin"))
        capacity = self.facts.hardware.device.usable_memory_bytes
        columns = self.columns.joined(
            {
                "memory_total": total,
                "memory_margin": margin,
                "memory_capacity": capacity,
                "roomy": total + margin <= capacity,
                "step": self.found.time["step"][self.first :],
                **host_columns(self.facts, self.columns),
            }
        )
        kept, rejected = attributed(columns, dict(rejection_masks(columns, self.space.allowed.judged)))
        return Survey(
            columns=kept,
            rejected=(*self.space.allowed.rejected, *rejected),
            considered=self.space.allowed.considered,
            bounded=0,
            space=self.space,
            nearest=nearest_of(rejected),
        )

    def case(self, plan: Plan) -> Case:
        """Return one of the plans with its estimates, or one that a rule rejected."""
        sizes, policies = self.columns.micro_batch_size, self.columns.recompute
        own = (sizes == plan.micro_batch_size) & (policies == code_of(plan.recompute))
        if not own.any():
            return assess(self.facts, plan)
        return cases_of([(self.facts, plan)], self.found, self.first + int(own.argmax()))[0]


def _leaves_others_idle(facts: Facts, fixed: Constraints) -> bool:
    """Return whether one of several devices may be taken: it may be faster, when communication is slow."""
    others = (fixed.pp, fixed.dp_replicate, fixed.dp_shard, fixed.cp, fixed.tp, fixed.ep)
    asked = any((degree or 1) > 1 for degree in others) or fixed.strategy not in (None, "single")
    return facts.hardware.world_size > 1 and not asked


def one_device_may_fit(facts: Facts, fixed: Constraints) -> bool:
    """Return whether one device of several is asked for what it does alone, and may hold the states."""
    alone = replace(facts, hardware=single_device(facts.hardware))
    return _leaves_others_idle(facts, fixed) and may_fit(alone, fixed.offload)


def assessed_with_one_device(
    facts: Facts,
    fixed: Constraints,
    several: Sequence[tuple[Facts, Plan]],
    blocks_of: BlocksOf | None = None,
) -> tuple[tuple[Case, ...], Alone | None]:
    """Return some plans as cases, and what one device of a job does alone; None if it is not asked.

    All are estimated together, because memory and time do not hang on devices that a plan leaves idle. Only
    on a host without accelerators the one device is another: a process with all cores.

    Args:
        facts: the job.
        fixed: what the user settled.
        several: plans of the job, or of one that differs in the number of nodes alone, each with its job.
        blocks_of: as of ``assess_together``.
    """
    if not _leaves_others_idle(facts, fixed):
        return assess_together(several, blocks_of), None
    alone = replace(facts, hardware=single_device(facts.hardware))
    space = searched(alone, fixed, obeying(alone, replace(fixed, strategy=None)))
    columns = option_columns(fixed, space.allowed.columns)
    if not several or alone.hardware.device is not facts.hardware.device:
        own = Alone(facts=alone, space=space, columns=columns, found=estimated(alone, columns), first=0)
        return assess_together(several, blocks_of), own
    many, widest = len(columns.pp), widest_of(several)
    table = {
        name: np.concatenate([column, _for_all(getattr(columns, name), many)])
        for name, column in plans_table([plan for _, plan in several]).items()
    }
    every = Columns(facts_columns(widest) | table)
    found = estimated(widest, every, blocks_of and blocks_of(every))
    own = Alone(facts=alone, space=space, columns=columns, found=found, first=len(several))
    return cases_of(several, found), own


def _for_all(column: Any, many: int) -> Any:
    """Return a column as an array of so many rows: of a plain number each has it."""
    return column if getattr(column, "shape", ()) else np.full(many, column)


def single_device(hardware: Hardware) -> Hardware:
    """Return one device of a cluster; on a host without accelerators one process with all its cores."""
    device = hardware.device
    if device.type is DeviceType.CPU:
        count = hardware.devices_per_node
        products, memory = count * (device.whole_products or 1.0), count * (device.whole_memory or 1.0)
        device = replace(
            device,
            memory_bytes=device.memory_bytes * count,
            usable_memory_bytes=device.usable_memory_bytes * count,
            memory_bytes_per_s=device.memory_bytes_per_s * memory,
            fresh_bytes_per_s=device.fresh_bytes_per_s and device.fresh_bytes_per_s * memory,
            peak=device.peak.times(count),
            sustained=device.sustained.times(products),
        )
    return replace(hardware, device=device, devices_per_node=1, num_nodes=1, scale_up_devices=1)
