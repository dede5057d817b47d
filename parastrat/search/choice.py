"""From a survey to an answer: the ladder, the alternatives, and what would fit if nothing does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from parastrat.assess import assess, assess_all, columns_of
from parastrat.hardware import DeviceType, Rates
from parastrat.records import plain
from parastrat.result import Rejection, SearchResult
from parastrat.rules import findings_of
from parastrat.search.ladder import Standing, choose_rung, eligible, rung_reports
from parastrat.search.nearest import nearest_fits
from parastrat.search.rows import Constraints
from parastrat.search.survey import MOST_ALTERNATIVES, Survey, best, objection, survey

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Case, Facts
    from parastrat.hardware import Hardware
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule

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
    standings, alternatives, rejected = _assessed(facts, fixed, judged)
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
        alternatives=tuple(case for case in alternatives if chosen is None or case.plan != chosen.plan),
        rejected=rejected,
        nearest_fit=() if chosen else nearest_fits(facts, fixed, model_at),
        findings=findings_of(chosen, columns_of(chosen)) if chosen else (),
        tolerance=tolerance,
        considered=judged.considered,
        bounded=judged.bounded,
        fastest=min(cases.values(), key=lambda case: case.estimate.time.step, default=None),
        forced_strategy=fixed.strategy,
        unforced=unforced,
    )


def _assessed(
    facts: Facts, fixed: Constraints, judged: Survey
) -> tuple[dict[int, Standing], tuple[Case, ...], tuple[Rejection, ...]]:
    """Return each rung's best plan, the best of every strategy, and what each rule removed.

    All plans that the answer shows are assessed together: one by one would take longer than the search.
    """
    picks = {rung: _pick(judged, rung) for rung in _RUNGS}
    others = _best_by_strategy(judged)
    examples: dict[PlanRule, Plan] = {}
    counts: Counter[PlanRule] = Counter()
    for entry in judged.rejected:
        counts[entry.rule] += entry.count
        if entry.rule not in examples:
            examples[entry.rule] = entry.example
    plans = dict.fromkeys([*(plan for plan, _, _ in picks.values() if plan), *others, *examples.values()])
    cases = dict(zip(plans, assess_all(facts, tuple(plans)), strict=True))
    standings = {
        rung: _standing(
            cases[plan] if plan else None, fits=fits, rule=rule, absent=_absence(facts, fixed, rung)
        )
        for rung, (plan, fits, rule) in picks.items()
    }
    rejected = [
        Rejection(
            code=rule.code, title=rule.title, count=count, example=rule.hit(cases[examples[rule]]).message
        )
        for rule, count in counts.most_common()
    ]
    return standings, tuple(cases[plan] for plan in others), tuple(rejected)


def _pick(judged: Survey, rung: int) -> tuple[Plan | None, bool, PlanRule | None]:
    """Return a rung's best plan; else the nearest to fitting; else one that the named rule removed."""
    columns = judged.columns
    rows = np.flatnonzero(columns.rung == rung)
    if len(rows):
        roomy = rows[columns.roomy[rows]]
        return judged.plan(best(columns, roomy if len(roomy) else rows)), True, None
    if rung in judged.nearest:
        return judged.nearest[rung], False, None
    objected = objection(judged, rung)
    return (None, False, None) if objected is None else (objected[1], False, objected[0])


def _absence(facts: Facts, fixed: Constraints, rung: int) -> str:
    """Return why a rung has no plan at all, not even one that a rule could reject."""
    if fixed != Constraints():
        return "another plan was asked for"
    if rung in (3, 4) and facts.model.heads is None:
        return "the model's heads are unknown, or it has none"
    return f"no such plan over {facts.hardware.world_size} devices"


def _standing(case: Case | None, *, fits: bool, rule: PlanRule | None, absent: str) -> Standing:
    if case is None:
        return Standing(case=None, absent=absent)
    if rule is not None:
        return Standing(case=None, absent=rule.hit(case).message)
    return Standing(case=case) if fits else Standing(case=None, nearest=case)


def _one_device(facts: Facts, fixed: Constraints, standing: Standing) -> Standing:
    """Return rung 0: of several devices one may be faster than all, when communication is slow."""
    others = (fixed.pp, fixed.dp_replicate, fixed.dp_shard, fixed.cp, fixed.tp, fixed.ep)
    if facts.hardware.world_size == 1:
        return standing
    if any((degree or 1) > 1 for degree in others) or fixed.strategy not in (None, "single"):
        return Standing(case=None, absent="another plan was asked for")
    alone = replace(facts, hardware=single_device(facts.hardware))
    judged = survey(alone, replace(fixed, strategy=None))
    plan, fits, rule = _pick(judged, 0)
    case = assess(alone, plan) if plan else None
    return _standing(case, fits=fits, rule=rule, absent=_absence(alone, fixed, 0))


def single_device(hardware: Hardware) -> Hardware:
    """Return one device of a cluster; on a host without accelerators one process with all its cores."""
    device = hardware.device
    if device.type is DeviceType.CPU:
        count = hardware.devices_per_node
        device = replace(
            device,
            memory_bytes=device.memory_bytes * count,
            usable_memory_bytes=device.usable_memory_bytes * count,
            memory_bytes_per_s=device.memory_bytes_per_s * count,
            peak=_times(device.peak, count),
            sustained=_times(device.sustained, count),
        )
    return replace(hardware, device=device, devices_per_node=1, num_nodes=1, scale_up_devices=1)


def _times(rates: Rates, count: int) -> Rates:
    return Rates(**{name: rate * count for name, rate in plain(rates).items() if rate is not None})


def _best_by_strategy(judged: Survey) -> list[Plan]:
    """Return the best plan of every strategy that fits, fastest first, as many as a report can show."""
    columns = judged.columns
    fitting = np.flatnonzero(columns.roomy)
    fastest = [
        best(columns, fitting[columns.strategy[fitting] == strategy])
        for strategy in sorted(set(columns.strategy[fitting].tolist()))
    ]
    fastest.sort(key=lambda row: float(columns.step[row]))
    return [judged.plan(row) for row in fastest[:MOST_ALTERNATIVES]]
