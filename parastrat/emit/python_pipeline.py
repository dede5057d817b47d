"""``parallelize.py`` for plans with the stages of a pipeline: alone, divided, under DDP, FSDP2 and HSDP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from parastrat.emit import python_pipeline_text as pipeline_text
from parastrat.emit import python_shard_text as shard_text
from parastrat.emit import python_tensor_text as tensor_text
from parastrat.emit import python_text as text
from parastrat.emit import python_unused_text as unused_text
from parastrat.emit.python_parts import (
    COMPUTE,
    MESH_IMPORTS,
    build_mesh,
    heading,
    named_as,
    sorted_imports,
)
from parastrat.emit.python_tensor import divided_text, left_whole, style_imports
from parastrat.emit.shell import counted
from parastrat.emit.text_file import TextFile
from parastrat.schedules import SINGLE, SPLIT, V_SHAPED, rank_of_stage, schedule_of
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.emit.division import Division
    from parastrat.emit.staging import StageParts, Staging
    from parastrat.plan import Plan


def emit_staged(case: Case, staging: Staging, division: Division | None) -> tuple[TextFile, ...]:
    """Return ``parallelize.py`` for torch 2.13, whose ``Pipeline`` runs steps; checked already."""
    plan = case.plan
    divided = [] if division is None else divided_text(division, staging)
    whole = "" if division is None else left_whole(plan, division)
    container = {"container": json.dumps(staging.container), "name": staging.container}
    body = [
        pipeline_text.SIGNATURE.format(count=counted(plan.mesh.world_size, "rank")),
        text.NO_BUFFERS,
        tensor_text.COUNT_CHECK.format(count=staging.blocks, **container),
        text.WEIGHTS.format(dtype="bfloat16" if plan.precision is Precision.BF16 else "float32"),
        pipeline_text.NO_CACHES if staging.caches else "",
        pipeline_text.APPLY,
        pipeline_text.DIVIDE if divided else "",
        text.RECOMPUTE[plan.recompute].replace(" names", " BLOCKS"),
        _own_stages(plan),
        _over_data(plan, staging),
        pipeline_text.GRADIENTS if divided and not plan.shards_parameters else "",
        pipeline_text.RETURN,
    ]
    definitions = [
        _stages(staging),
        build_mesh(case),
        *divided,
        *([tensor_text.WHOLE_GRADIENTS] if divided and not plan.shards_parameters else []),
        *text.RECOMPUTE_DEFINITIONS[plan.recompute],
        pipeline_text.STAGE.format(
            copied=_copied(plan, staging, division),
            output=f".{staging.output}" if staging.output else "",
        ),
        *([pipeline_text.AVERAGE.format(local=_local(plan))] if _averages(plan) else []),
        *([unused_text.UNUSED] if _makes_zeros(plan, staging) else []),
        _pipeline(plan, staging, division),
    ]
    lines = [
        pipeline_text.HEADER.format(
            title=heading(case), loop=_loop(plan) + whole + named_as(staging.model)
        ),
        sorted_imports(_imports(plan, "".join(definitions + body))),
        *definitions,
        "".join(body),
    ]
    return (TextFile(path="parallelize.py", text="\n".join(lines)),)


def _copied(plan: Plan, staging: Staging, division: Division | None) -> str:
    if schedule_of(plan) in SPLIT:
        return ".clone()  # weights wait for their gradients"
    is_view = staging.is_view or (division is not None and bool(division.edges))
    return ".clone()  # torch cannot detach views" if is_view else ""


def _local(plan: Plan) -> str:
    """Return what to read of a gradient, of which this rank may have a share."""
    return ".to_local()" if plan.shards_parameters or plan.mesh.tp > 1 else ""


def _averages(plan: Plan) -> bool:
    """Return whether gradients are averaged at the end of a step, not by FSDP2."""
    return plan.mesh.dp > 1 and not plan.shards_parameters


def _makes_zeros(plan: Plan, staging: Staging) -> bool:
    """Return whether FSDP2 reduces zeros for experts that no token of a rank chose."""
    return plan.shards_parameters and staging.routed


def _loop(plan: Plan) -> str:
    count, samples = plan.gradient_accumulation_steps, plan.micro_batch_size
    axes = "pp or tp" if plan.mesh.tp > 1 else "pp"
    return (
        f"One step of a rank is {counted(count, 'micro-batch').replace('hs', 'hes')} of "
        f"{counted(samples, 'sample')}, a global batch of {plan.global_batch_size}; ranks that\n"
        f"differ in {axes} alone take the same samples. The norm of all gradients is a sum over pp, too."
    )


def _stages(staging: Staging) -> str:
    prefix = f"{staging.container}." if staging.container else ""
    tied = ", ".join(f"{stage}: {json.dumps(name)}" for stage, name in staging.tied)
    return pipeline_text.STAGES.format(
        container=prefix,
        count=staging.blocks,
        stages="\n".join(f"    {_parts(stage, staging.blocks)}," for stage in staging.stages),
        tied=pipeline_text.TIED.format(names=tied) if tied else "",
    )


def _parts(stage: StageParts, blocks: int) -> str:
    own = f"BLOCKS[{stage.first or ''}:{stage.end if stage.end < blocks else ''}]"
    if not stage.before and not stage.behind:
        return own
    inside = [f"*{own}"] if stage.end > stage.first else []
    return f"[{', '.join([*map(json.dumps, stage.before), *inside, *map(json.dumps, stage.behind)])}]"


def _pipeline(plan: Plan, staging: Staging, division: Division | None) -> str:
    dp, scaled = plan.mesh.dp, plan.precision is Precision.FP16_MIXED
    holders = [rank_of_stage(plan, stage) for stage, _ in staging.tied]
    apart = 0 < len(holders) < plan.mesh.pp
    setup = (
        pipeline_text.TIES.format(ranks=", ".join(f"ranks[{rank}]" for rank in holders), pp=plan.mesh.pp)
        if apart
        else ""
    )
    ties = (
        pipeline_text.SUM_TIES.format(
            local=_local(plan),
            group="self.tie" if apart else 'self.mesh.get_group("pp")',
        )
        if holders
        else ""
    )
    if dp > 1:
        setup += pipeline_text.DATA.format(group=_data_group(plan))
    zeros = _makes_zeros(plan, staging)
    if zeros:
        setup += pipeline_text.LEAVE_UNUSED
    return pipeline_text.PIPELINE.format(
        ties=setup,
        schedule=pipeline_text.SCHEDULES[schedule_of(plan)],
        shape=", ".join(
            ["*inputs.shape" if staging.by_position else "len(inputs)", *map(str, staging.sizes)]
        ),
        dtype="" if staging.dtype == "float32" else f"dtype=torch.{staging.dtype}, ",
        stages="*stages" if schedule_of(plan) in SINGLE else "stages",
        count=plan.gradient_accumulation_steps,
        positions=pipeline_text.POSITIONS.format(tp=plan.mesh.tp) if division and division.edges else "",
        local=".to_local()" if division and division.divides_logits else "",
        full=".float()" if plan.precision is not Precision.FP32 else "",
        scale=(f" * {dp}" if dp > 1 else "") + (" * self.scale" if scaled else ""),
        set_scale=pipeline_text.SCALE if scaled else "",
        unscaling=pipeline_text.UNSCALE.format(local=_local(plan)) if scaled else "",
        last=len(staging.stages) - 1,
        sum_targets=pipeline_text.SUM_TARGETS if dp > 1 else "",
        run=(pipeline_text.BEGIN if zeros else "") + _run(staging, division),
        gradients=(pipeline_text.END if zeros else "")
        + ties
        + (pipeline_text.CALL_AVERAGE if _averages(plan) else "")
        + (pipeline_text.CALL_UNSCALE if scaled else ""),
        sum_loss=pipeline_text.SUM_LOSS if dp > 1 else "",
    )


def _run(staging: Staging, division: Division | None) -> str:
    if division is not None and division.divides_logits:
        return pipeline_text.RUN_DIVIDED  # what drops is not divided
    return pipeline_text.RUN_DROPPING if staging.drops else pipeline_text.RUN


def _data_group(plan: Plan) -> str:
    mesh = plan.mesh
    if mesh.dp_replicate > 1 and mesh.dp_shard > 1:
        return 'mesh["dp_replicate", "dp_shard"]._flatten().get_group()'
    return f'mesh.get_group("{"dp_replicate" if mesh.dp_replicate > 1 else "dp_shard"}")'


def _own_stages(plan: Plan) -> str:
    pp, schedule = plan.mesh.pp, schedule_of(plan)
    move = "" if plan.shards_parameters else ".to(mesh.device_type)"  # FSDP2 moves what it shards
    if schedule in SINGLE:
        return pipeline_text.ONE_STAGE.format(move=move)
    indices = f"(rank, {2 * pp - 1} - rank)" if schedule in V_SHAPED else f"range(rank, len(STAGES), {pp})"
    return pipeline_text.SEVERAL_STAGES.format(indices=indices, move=move)


def _over_data(plan: Plan, staging: Staging) -> str:
    compute = COMPUTE.get(plan.precision)
    if not plan.shards_parameters:
        return pipeline_text.AUTOCAST.format(dtype=compute) if compute else ""
    settings = [f"param_dtype={compute}"] if compute else []
    if plan.precision is not Precision.FP32:
        settings.append("reduce_dtype=torch.float32")
    axes = '"dp_replicate", "dp_shard"' if plan.mesh.dp_replicate > 1 else '"dp_shard"'
    return pipeline_text.SHARD.format(
        axes=axes,
        policy=", ".join(settings),
        unused=pipeline_text.REDUCE_UNUSED if _makes_zeros(plan, staging) else "",
    )


def _imports(plan: Plan, code: str) -> list[str]:
    schedule = pipeline_text.SCHEDULES[schedule_of(plan)]
    imports = [
        "import torch",
        "from torch import nn",
        *MESH_IMPORTS,
        *text.RECOMPUTE_IMPORTS[plan.recompute],
        f"from torch.distributed.pipelining import PipelineStage, {schedule}",
    ]
    if plan.mesh.tp > 1:
        imports += style_imports(code)
    if "Counter(" in code:
        imports.append("from collections import Counter")
    if "copy.deepcopy" in code:
        imports.append("import copy")
    if "Unused(" in code:
        imports += unused_text.IMPORTS
    if plan.shards_parameters:
        imports.append(shard_text.FSDP_IMPORTS[0])
    return imports
