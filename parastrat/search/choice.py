"""From a survey to an answer: the ladder, the alternatives, and what would fit if nothing does."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from parastrat.assess import columns_of
from parastrat.collection import without_collection
from parastrat.model import Family
from parastrat.result import Rejection, SearchResult
from parastrat.rules import findings_of
from parastrat.rungs import NEAR, TOLERANCE
from parastrat.search.alone import assessed_with_one_device, one_device_may_fit
from parastrat.search.ladder import Standing, choose_rung, eligible, rung_reports
from parastrat.search.nearest import remedies_of
from parastrat.search.objections import Objection, told, unestimated
from parastrat.search.recommended import recommendation
from parastrat.search.rows import Constraints
from parastrat.search.shorter import Misfit
from parastrat.search.survey import MOST_ALTERNATIVES, RUNGS, Survey, best, best_of_rung, objection, survey
from parastrat.units import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from parastrat.case import Case, Facts
    from parastrat.finding import Hit
    from parastrat.plan import Plan
    from parastrat.rules import PlanRule
    from parastrat.search.alone import Alone
    from parastrat.search.changes import ModelAt
    from parastrat.search.obeying import Rejected
    from parastrat.search.remedies import Remedies


@without_collection()
def find_plan(
    facts: Facts,
    fixed: Constraints | None = None,
    *,
    tolerance: float = TOLERANCE,
    model_at: ModelAt | None = None,
) -> SearchResult:
    """Return the recommendation for a job, with every rung that was climbed for it.

    Args:
        facts: model, hardware, workload and stack.
        fixed: what the user settled beforehand.
        tolerance: share by which a lower rung may be slower than the fastest and still be taken.
        model_at: the model at another sequence length, in another number format, to find what would fit if
            nothing does.
    """
    fixed = fixed or Constraints()
    judged = survey(facts, fixed)
    remedies = None
    if not (len(judged.columns.pp) or one_device_may_fit(facts, fixed)):
        # what fits a changed job is estimated with what does not fit this one
        remedies = _remedies(judged, model_at)
    standings, alternatives, rejected, changed = _assessed(facts, fixed, judged, remedies)
    taken = choose_rung(standings, tolerance)
    cases = eligible(standings)
    chosen = cases[taken] if taken is not None else None
    unforced = None
    if fixed.strategy is not None:
        unforced = recommendation(facts, replace(fixed, strategy=None), tolerance=tolerance)
    near, aside = ((), None) if chosen else (remedies or _remedies(judged, model_at)).told(changed)
    return SearchResult(
        facts=facts,
        chosen=chosen,
        rungs=rung_reports(standings, taken, tolerance),
        alternatives=tuple(case for case in alternatives if chosen is None or case.plan != chosen.plan),
        rejected=rejected,
        nearest_fit=near,
        memory_aside=aside,
        findings=findings_of(chosen, columns_of(chosen)) if chosen else (),
        tolerance=tolerance,
        considered=judged.considered,
        bounded=judged.bounded,
        fastest=min(cases.values(), key=lambda case: case.estimate.time.step, default=None),
        forced_strategy=fixed.strategy,
        unforced=unforced,
    )


def _remedies(judged: Survey, model_at: ModelAt | None) -> Remedies:
    misfit = Misfit(facts=judged.space.facts, plan=next(iter(judged.nearest.values()), None))
    return remedies_of(judged.space, model_at, misfit)


def _assessed(
    facts: Facts, fixed: Constraints, judged: Survey, remedies: Remedies | None
) -> tuple[dict[int, Standing], tuple[Case, ...], tuple[Rejection, ...], tuple[Case, ...]]:
    """Return each rung's best plan, the best of every strategy, what each rule removed, and remedies.

    All plans that the answer shows are assessed together: one by one would take longer than the search.
    """
    picks = {rung: _pick(judged, rung) for rung in range(RUNGS)}
    others, examples = _best_by_strategy(judged), _examples(judged)
    objections = (*(pick.objection for pick in picks.values() if pick.objection), *examples.values())
    said = unestimated(facts, objections)
    own = (pick.plan for pick in picks.values() if pick.plan)
    plans = dict.fromkeys([*own, *others, *(each.plan for each in objections if each not in said)])
    changed = () if remedies is None else remedies.of_job
    several = [*((facts, plan) for plan in plans), *((fit.facts, fit.plan) for fit in changed)]
    together, alone = assessed_with_one_device(facts, fixed, several, judged.space.work.found)
    cases = dict(zip(plans, together[: len(plans)], strict=True))
    case_of = cases.__getitem__
    standings = {
        rung: _standing(pick, said, case_of, _absence(facts, fixed, rung)) for rung, pick in picks.items()
    }
    if alone is not None:
        standings[0] = _standing_alone(alone, fixed)
    counts: Counter[PlanRule] = Counter()
    for entry in judged.rejected:
        counts[entry.rule] += entry.count
    rejected = (
        _rejection(rule, count, told(examples[rule], said, case_of)) for rule, count in counts.most_common()
    )
    return standings, tuple(cases[plan] for plan in others), tuple(rejected), together[len(plans) :]


def _rejection(rule: PlanRule, count: int, hit: Hit) -> Rejection:
    return Rejection(code=rule.code, title=rule.title, count=count, example=hit.message, fix=hit.fix)


def _examples(judged: Survey) -> dict[PlanRule, Objection]:
    """Return for each rule the first of the plans that it removed."""
    first: dict[PlanRule, Rejected] = {}
    for entry in judged.rejected:
        first.setdefault(entry.rule, entry)
    return {rule: Objection(rule, entry.example) for rule, entry in first.items()}


class _Pick(NamedTuple):
    """What is told of a rung: its best plan, or the nearest to fitting; else why it has neither."""

    plan: Plan | None = None
    fits: bool = False
    objection: Objection | None = None


def _pick(judged: Survey, rung: int) -> _Pick:
    """Return a rung's best plan; else the nearest to fitting; else one that the named rule removed."""
    row = best_of_rung(judged.columns, rung)
    if row is not None:
        return _Pick(judged.plan(row), fits=True)
    if rung in judged.nearest:
        return _Pick(judged.nearest[rung])
    return _Pick(objection=objection(judged, rung))


def _absence(facts: Facts, fixed: Constraints, rung: int) -> str:
    """Return why a rung has no plan at all, not even one that a rule could reject."""
    if fixed != Constraints(offload=fixed.offload):
        return "another plan was asked for"
    if rung in (3, 4) and facts.model.heads is None and facts.model.divisible is None:
        if facts.model.family is Family.MODULE:
            return "the model's heads are unknown, or it has none"
        return "the model has no attention heads"
    return f"no such plan over {counted(facts.hardware.world_size, 'device')}"


def _standing(
    pick: _Pick, said: Mapping[Objection, Hit], case_of: Callable[[Plan], Case], absent: str
) -> Standing:
    """Return what a rung's pick is told as; ``absent`` where there is none."""
    if pick.plan is not None:
        case = case_of(pick.plan)
        return Standing(case=case) if pick.fits else Standing(case=None, nearest=case)
    if pick.objection is not None:
        absent = told(pick.objection, said, case_of).message
    return Standing(case=None, absent=absent)


def _standing_alone(alone: Alone, fixed: Constraints) -> Standing:
    pick = _pick(alone.survey(), 0)
    said = unestimated(alone.facts, [pick.objection] if pick.objection else ())
    return _standing(pick, said, alone.case, _absence(alone.facts, fixed, 0))


def _best_by_strategy(judged: Survey) -> list[Plan]:
    """Return the best plan of every strategy that fits, fastest first, as many as a report can show."""
    columns = judged.columns
    fitting = np.flatnonzero(columns.roomy)
    strategies = columns.strategy[fitting]
    several = [fitting[strategies == strategy] for strategy in sorted(set(strategies.tolist()))]
    least = [float(columns.step[rows].min()) for rows in several]
    # the best of a strategy may be slower than its fastest, but not by more than that
    last = NEAR * max(sorted(least)[:MOST_ALTERNATIVES], default=0)
    fastest = [best(columns, rows) for rows, step in zip(several, least, strict=True) if step <= last]
    fastest.sort(key=lambda row: float(columns.step[row]))
    return [judged.plan(row) for row in fastest[:MOST_ALTERNATIVES]]
