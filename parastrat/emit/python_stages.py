"""What of the emitted ``parallelize.py`` says which parts of a model each stage of a pipeline runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from parastrat.emit import python_alike_text as alike_text
from parastrat.emit import python_passing_text as passing_text
from parastrat.emit import python_pipeline_text as pipeline_text
from parastrat.emit import python_tensor_text as tensor_text
from parastrat.emit.python_names import blocks_list, listed, stage_list
from parastrat.emit.python_parts import COMPUTE, data_axes, policy
from parastrat.schedules import SINGLE, SPLIT, V_SHAPED, schedule_of

if TYPE_CHECKING:
    from parastrat.emit.division import Division
    from parastrat.emit.staging import Sent, Staging
    from parastrat.plan import Plan


def lists_of_stages(staging: Staging) -> str:
    """Return the lists of blocks, of the parts of each stage, and of what passes between them."""
    tied = ", ".join(f"{stage}: {json.dumps(name)}" for stage, name in staging.tied)
    received = (f"    {listed([*map(_sent, each)])}," for each in staging.received)
    return pipeline_text.STAGES.format(
        blocks=blocks_list(staging.blocks),
        stages="\n".join(f"    {stage_list(stage, staging.blocks)}," for stage in staging.stages),
        received="" if staging.alike else pipeline_text.RECEIVED.format(received="\n".join(received)),
        tied=pipeline_text.TIED.format(names=tied) if tied else "",
    )


def _sent(sent: Sent) -> str:
    part, place = sent
    return f"({json.dumps(part)}, {place})"


def check_of_parts(staging: Staging) -> str:
    """Return the refusal of other models than the one that was planned for."""
    if not staging.alike or len(staging.containers) != 1:
        return passing_text.PARTS_CHECK
    (container,) = staging.containers
    return tensor_text.COUNT_CHECK.format(
        count=len(staging.blocks), container=json.dumps(container), name=container
    )


def stage_class(plan: Plan, staging: Staging, division: Division | None) -> str:
    """Return the class that runs the parts of one stage."""
    output = f".{staging.output}" if staging.output else ""
    if staging.alike:
        is_view = staging.alike.is_view or (division is not None and bool(division.edges))
        waiting = alike_text.WAITING if schedule_of(plan) in SPLIT else ""
        return alike_text.STAGE.format(
            why=alike_text.WHY if is_view else "",
            copied=alike_text.COPIED if is_view else waiting,
            output=output,
        )
    dtype, sharded = COMPUTE.get(plan.precision), plan.shards_parameters
    return passing_text.STAGE.format(
        autocast=passing_text.AUTOCAST.format(dtype=dtype) if dtype and not sharded else "",
        cast=passing_text.CAST.format(dtype=dtype) if dtype and sharded else "",
        cast_inputs=passing_text.CAST_INPUTS.format(dtype=dtype) if dtype and sharded else "",
        zeros=passing_text.WRITTEN_ZEROS if staging.writes else passing_text.ZEROS,
        kept=passing_text.KEPT if staging.writes else "",
        takes=staging.takes,
        output=output,
    )


def own_stages(plan: Plan) -> str:
    """Return how a rank makes its stages."""
    pp, schedule = plan.mesh.pp, schedule_of(plan)
    move = "" if plan.shards_parameters else ".to(mesh.device_type)"  # FSDP2 moves what it shards
    if schedule in SINGLE:
        return pipeline_text.ONE_STAGE.format(move=move)
    indices = f"(rank, {2 * pp - 1} - rank)" if schedule in V_SHAPED else f"range(rank, len(STAGES), {pp})"
    return pipeline_text.SEVERAL_STAGES.format(indices=indices, move=move)


def over_data(plan: Plan, staging: Staging, *, zeros: bool) -> str:
    """Return what FSDP2 or autocast does to the stages.

    Args:
        plan: with pp.
        staging: of the model.
        zeros: whether zeros are reduced for what no token of a rank chose.
    """
    compute = COMPUTE.get(plan.precision)
    if not plan.shards_parameters:
        return pipeline_text.AUTOCAST.format(dtype=compute) if compute else ""
    return pipeline_text.SHARD.format(
        axes=data_axes(plan),
        policy=policy(plan),
        norms=passing_text.NORMS if compute and staging.statistics else "",
        unused=pipeline_text.REDUCE_UNUSED if zeros else "",
    )
