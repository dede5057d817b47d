"""As few micro-batches as a step can have and reach everything that one with all of them holds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import replace
from operator import le
from typing import TYPE_CHECKING

from parastrat.plan import PipelineSchedule
from parastrat.schedules import schedule_of
from parastrat.timeline.kinds import Kind
from parastrat.timeline.orders import orders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.plan import Plan
    from parastrat.timeline.orders import Action

#: a step's memory repeats from the second micro-batch on
_WITHOUT_PIPELINE = 2
#: schedules under which every micro-batch is in flight at once
_ALL_FORWARDS_FIRST = (PipelineSchedule.GPIPE, PipelineSchedule.LOOPED_BFS)
#: those whose chunks take turns
_IN_TURNS = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)
#: what makes gradients of inputs, and of weights
_STARTS = (Kind.BACKWARD, Kind.INPUTS)
_ENDS = (Kind.BACKWARD, Kind.WEIGHTS)
#: What a rank holds as it begins to compute: by stage, micro-batches that ran forward and not yet back,
#: those of them whose weights have no gradients yet, and whether there are gradients. By kinds of moments:
#: what is computed, of which stage, whether this gives it its last gradients, and which stages have their
#: last
_Moments = dict[tuple[Hashable, ...], set[tuple[int, ...]]]


def with_few_micro_batches(plan: Plan) -> Plan:
    """Return the plan with no more micro-batches than memory hangs on, but for a pipeline's buffers.

    Orders of schedules repeat themselves: at moments of each kind ranks hold the most of a few
    micro-batches that they hold of all. Under GPipe and LoopedBFS all are in flight at once.
    """
    steps = plan.gradient_accumulation_steps
    few = min(steps, _WITHOUT_PIPELINE) if plan.mesh.pp == 1 else _fewest(plan, steps)
    return replace(plan, gradient_accumulation_steps=few)


def _fewest(plan: Plan, steps: int) -> int:
    if steps <= _least(plan) or schedule_of(plan) in _ALL_FORWARDS_FIRST:
        return steps
    whole = _moments(plan, steps)
    for few in range(_least(plan), steps):
        if _round(plan, few) == _round(plan, steps):
            found = _moments(plan, few)
            if all(map(_holds, found, whole)) and all(map(_holds, whole, found)):
                return few
    return steps


def _least(plan: Plan) -> int:
    """Return with how few micro-batches torch runs a schedule."""
    return plan.mesh.pp * (2 if schedule_of(plan) is PipelineSchedule.DUAL_PIPE_V else 1)


def _round(plan: Plan, steps: int) -> float:
    """Return for how many micro-batches a chunk takes its turn; torch wants them all to be of this many."""
    return steps / max(1, steps // plan.mesh.pp) if schedule_of(plan) in _IN_TURNS else 0


def _moments(plan: Plan, steps: int) -> list[_Moments]:
    """Return those of each rank."""
    made = orders(schedule_of(plan), plan.mesh.pp, plan.virtual_stages, steps)
    return [_of_rank(actions, steps) for actions in made]


def _of_rank(actions: Sequence[Action], steps: int) -> _Moments:
    stages = sorted({action.stage for action in actions})
    forwards, inputs, ends = Counter[int](), Counter[int](), Counter[int]()
    found: _Moments = defaultdict(set)
    for kind, stage, _ in actions:
        is_last = kind in _ENDS and ends[stage] == steps - 1
        ended = tuple(ends[each] == steps for each in stages)
        alive = (forwards[each] - ends[each] for each in stages)
        waiting = (inputs[each] - ends[each] for each in stages)
        begun = (int(ends[each] > 0) for each in stages)
        found[kind, stage, is_last, ended].add((*alive, *waiting, *begun))
        forwards[stage] += kind is Kind.FORWARD
        inputs[stage] += kind in _STARTS
        ends[stage] += kind in _ENDS
    return found


def _holds(one: _Moments, other: _Moments) -> bool:
    """Return whether a rank holds in one step, or more, whatever it holds in another."""
    return all(
        held in one[kind] or any(all(map(le, held, more)) for more in one[kind])
        for kind, holds in other.items()
        for held in holds
    )
