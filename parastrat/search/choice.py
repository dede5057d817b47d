"""From a survey to an answer: the ladder, the alternatives, and what would fit if nothing does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parastrat.assess import assess, columns_of
from parastrat.hardware import DeviceType
from parastrat.result import SearchResult
from parastrat.rules import findings_of
from parastrat.search.ladder import Standing, choose_rung, eligible, rung_reports
from parastrat.search.nearest import nearest_fits
from parastrat.search.space import Constraints, plan_at
from parastrat.search.survey import Survey, nearest_row, objection, rejections, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case, Facts
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSpec

#: a report of more strategies than this is not read
_MOST_ALTERNATIVES = 8

_RUNGS = range(6)


def find_plan(
    facts: Facts,
    fixed: Constraints | None = None,
    *,
    tolerance: float = 0.05,
    model_at: Callable[[int], ModelSpec] | None = None,
) -> SearchResult:
    """Return the recommendation for a job, with every rung that was climbed for it.

    Args:
        facts: model, hardware, workload and stack.
        fixed: what the user settled beforehand.
        tolerance: share by which a lower rung may be slower than the fastest and still be taken.
        model_at: the model at another sequence length, to find what would fit if nothing does.
    """
    fixed = fixed or Constraints()
    judged = survey(facts, fixed)
    standings = {rung: _standing(judged, rung) for rung in _RUNGS}
    standings[0] = _one_device(facts, fixed, standings[0])
    taken = choose_rung(standings, tolerance)
    cases = eligible(standings)
    chosen = cases[taken] if taken is not None else None
    unforced = None
    if fixed.strategy is not None:
        unforced = find_plan(facts, replace(fixed, strategy=None), tolerance=tolerance).chosen
    return SearchResult(
        facts=facts,
        chosen=chosen,
        rungs=rung_reports(standings, taken, tolerance),
        alternatives=_alternatives(judged, chosen),
        rejected=rejections(judged),
        nearest_fit=() if chosen else nearest_fits(facts, fixed, model_at),
        findings=findings_of(chosen, columns_of(chosen)) if chosen else (),
        tolerance=tolerance,
        considered=judged.considered,
        fastest=min(cases.values(), key=lambda case: case.estimate.time.step, default=None),
        forced_strategy=fixed.strategy,
        unforced=unforced,
    )


def _standing(judged: Survey, rung: int) -> Standing:
    rows = np.flatnonzero(judged.rungs == rung)
    if len(rows):
        roomy = rows[judged.roomy[rows]]
        return Standing(case=judged.case(judged.best(roomy if len(roomy) else rows)))
    near = nearest_row(judged, rung)
    if near is not None:
        entry, row = near
        return Standing(case=None, nearest=assess(judged.facts, plan_at(entry.columns, row)))
    devices = judged.facts.hardware.world_size
    absent = objection(judged, rung) or f"no such mesh over {devices} devices was asked for or exists"
    return Standing(case=None, absent=absent)


def _one_device(facts: Facts, fixed: Constraints, standing: Standing) -> Standing:
    """Return rung 0: of several devices one may be faster than all, when communication is slow."""
    others = (fixed.pp, fixed.dp_replicate, fixed.dp_shard, fixed.cp, fixed.tp, fixed.ep)
    if facts.hardware.world_size == 1:
        return standing
    if any((degree or 1) > 1 for degree in others) or fixed.strategy not in (None, "single"):
        return Standing(case=None, absent="another plan was asked for")
    alone = replace(facts, hardware=single_device(facts.hardware))
    judged = survey(alone, replace(fixed, strategy=None))
    return _standing(judged, 0)


def single_device(hardware: Hardware) -> Hardware:
    """Return one device of a cluster; on a host without accelerators one process with all its cores."""
    device = hardware.device
    if device.type is DeviceType.CPU:
        count = hardware.devices_per_node
        sustained = replace(
            device.sustained,
            **{
                name: rate * count
                for name in ("fp32", "bf16", "fp16")
                if (rate := getattr(device.sustained, name)) is not None
            },
        )
        device = replace(
            device,
            memory_bytes=device.memory_bytes * count,
            usable_memory_bytes=device.usable_memory_bytes * count,
            memory_bytes_per_s=device.memory_bytes_per_s * count,
            sustained=sustained,
        )
    return replace(hardware, device=device, devices_per_node=1, num_nodes=1, scale_up_devices=1)


def _alternatives(judged: Survey, chosen: Case | None) -> tuple[Case, ...]:
    """Return the best plan of every other strategy that fits, fastest first."""
    fitting = np.flatnonzero(judged.roomy)
    best = [
        judged.best(fitting[judged.strategies[fitting] == strategy])
        for strategy in np.unique(judged.strategies[fitting])
    ]
    best.sort(key=lambda row: float(judged.step[row]))
    taken = chosen.plan.strategy if chosen else None
    cases = (judged.case(row) for row in best[: _MOST_ALTERNATIVES + 1])
    return tuple(case for case in cases if case.plan.strategy != taken)[:_MOST_ALTERNATIVES]
