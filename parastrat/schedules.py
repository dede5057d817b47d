"""Pipeline schedules: how many stages a rank of each has, and which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.choices import is_any_of
from parastrat.plan import PipelineSchedule, Plan

if TYPE_CHECKING:
    from parastrat.columns import Columns

#: schedules whose ranks hold the stages r and 2 pp - 1 - r; the others r, pp + r, 2 pp + r, ...
V_SHAPED = frozenset({PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V})
#: schedules that compute the gradients of weights apart from those of inputs
SPLIT = V_SHAPED | {PipelineSchedule.INTERLEAVED_ZERO_BUBBLE}
#: as ``is_any_of`` takes them
SPLITS = tuple(sorted(SPLIT))
#: those of which every backward is split
SPLIT_ALWAYS = (PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, PipelineSchedule.ZBV)
#: schedules of one stage a rank
SINGLE = frozenset({PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B})


def schedule_of(plan: Plan) -> PipelineSchedule:
    """Return the plan's schedule; 1F1B where it names none."""
    several = plan.virtual_stages > 1
    default = PipelineSchedule.INTERLEAVED if several else PipelineSchedule.ONE_F_ONE_B
    return plan.pp_schedule or default


def stages_of_rank(plan: Plan, rank: int) -> tuple[int, ...]:
    """Return the stages on one pipeline rank."""
    pp = plan.mesh.pp
    if schedule_of(plan) in V_SHAPED:
        return rank, 2 * pp - 1 - rank
    return tuple(rank + pp * chunk for chunk in range(plan.virtual_stages))


def rank_of_stage(plan: Plan, stage: int) -> int:
    """Return the pipeline rank that holds a stage."""
    lap, place = divmod(stage, plan.mesh.pp)
    return plan.mesh.pp - 1 - place if schedule_of(plan) in V_SHAPED and lap % 2 else place


def splits(c: Columns) -> Any:
    """Return where every backward is split into that of inputs and that of weights."""
    return is_any_of(c.pp_schedule, SPLIT_ALWAYS) & (c.pp > 1)
