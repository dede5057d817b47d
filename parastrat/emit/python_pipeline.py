"""``parallelize.py`` for plans with the stages of a pipeline: alone, divided, under DDP, FSDP2 and HSDP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.emit import python_alike_text as alike_text
from parastrat.emit import python_passing_text as passing_text
from parastrat.emit import python_pipeline_text as pipeline_text
from parastrat.emit import python_shard_text as shard_text
from parastrat.emit import python_tensor_text as tensor_text
from parastrat.emit import python_text as text
from parastrat.emit import python_unused_text as unused_text
from parastrat.emit.python_parts import (
    MESH_IMPORTS,
    build_mesh,
    heading,
    named_as,
    sorted_imports,
)
from parastrat.emit.python_stages import check_of_parts, lists_of_stages, over_data, own_stages, stage_class
from parastrat.emit.python_tensor import divided_text, left_whole, style_imports
from parastrat.emit.text_file import TextFile
from parastrat.schedules import SINGLE, rank_of_stage, schedule_of
from parastrat.units import counted
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.emit.division import Division
    from parastrat.emit.staging import Alike, Staging
    from parastrat.plan import Plan


def emit_staged(case: Case, staging: Staging, division: Division | None) -> tuple[TextFile, ...]:
    """Return ``parallelize.py`` for torch 2.13, whose ``Pipeline`` runs steps; checked already."""
    plan = case.plan
    divided = [] if division is None else divided_text(division, staging)
    whole = "" if division is None else left_whole(plan, division)
    body = [
        pipeline_text.SIGNATURE.format(count=counted(plan.mesh.world_size, "rank")),
        "" if staging.statistics else text.NO_BUFFERS,
        check_of_parts(staging),
        text.WEIGHTS.format(dtype="bfloat16" if plan.precision is Precision.BF16 else "float32"),
        pipeline_text.NO_CACHES if staging.caches else "",
        pipeline_text.APPLY,
        "" if staging.alike else passing_text.SKELETON,
        pipeline_text.DIVIDE if divided else "",
        text.RECOMPUTE[plan.recompute].replace(" names", " BLOCKS"),
        own_stages(plan),
        over_data(plan, staging, zeros=_makes_zeros(plan, staging)),
        pipeline_text.GRADIENTS if divided and not plan.shards_parameters else "",
        pipeline_text.RETURN.format(skeleton="" if staging.alike else ", skeleton"),
    ]
    definitions = [
        lists_of_stages(staging),
        build_mesh(case),
        *divided,
        *([tensor_text.WHOLE_GRADIENTS] if divided and not plan.shards_parameters else []),
        *text.RECOMPUTE_DEFINITIONS[plan.recompute],
        stage_class(plan, staging, division),
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
        f"One step of a rank is {counted(count, 'micro-batch')} of "
        f"{counted(samples, 'sample')}, a global batch of {plan.global_batch_size}; ranks that\n"
        f"differ in {axes} alone take the same samples. The norm of all gradients is a sum over pp, too."
    )


def _pipeline(plan: Plan, staging: Staging, division: Division | None) -> str:
    """Return the class that runs steps."""
    dp, scaled, alike = plan.mesh.dp, plan.precision is Precision.FP16_MIXED, staging.alike
    texts = alike_text if alike else passing_text
    count, zeros = plan.gradient_accumulation_steps, _makes_zeros(plan, staging)
    setup, add_up = _ties(plan, staging)
    schedule = {
        "schedule": pipeline_text.SCHEDULES[schedule_of(plan)],
        "stages": "*stages" if schedule_of(plan) in SINGLE else "stages",
        "count": count,
    }
    positions = pipeline_text.POSITIONS.format(tp=plan.mesh.tp) if division and division.edges else ""
    return pipeline_text.PIPELINE.format(
        skeleton="" if alike else ", skeleton: nn.Module",
        keep="" if alike else passing_text.KEEP,
        setup=setup
        + (pipeline_text.DATA.format(group=_data_group(plan)) if dp > 1 else "")
        + (pipeline_text.LEAVE_UNUSED if zeros else ""),
        schedule=texts.SCHEDULE.format(**schedule, **({} if alike is None else _shape(alike))),
        type=": torch.Tensor" if alike else "",
        prepare=texts.PREPARE.format(count=count, positions=positions),
        counted="inputs" if alike else "targets",
        local=".to_local()" if division and division.divides_logits else "",
        full=".float()" if plan.precision is not Precision.FP32 else "",
        scale=(f" * {dp}" if dp > 1 else "") + (" * self.scale" if scaled else ""),
        set_scale=pipeline_text.SCALE if scaled else "",
        unscaling=pipeline_text.UNSCALE.format(local=_local(plan)) if scaled else "",
        last=len(staging.stages) - 1,
        sum_targets=pipeline_text.SUM_TARGETS if dp > 1 else "",
        run=(passing_text.FOLLOW if staging.statistics and dp > 1 else "")
        + (pipeline_text.BEGIN if zeros else "")
        + texts.CHOOSE
        + _run(staging, division).format(schedule=texts.CHOSEN),
        gradients=(pipeline_text.END if zeros else "")
        + add_up
        + (pipeline_text.CALL_AVERAGE if _averages(plan) else "")
        + (pipeline_text.CALL_UNSCALE if scaled else ""),
        sum_loss=pipeline_text.SUM_LOSS if dp > 1 else "",
    )


def _ties(plan: Plan, staging: Staging) -> tuple[str, str]:
    """Return how the ranks that hold a tied weight are joined, and how they add up its gradients."""
    holders = [rank_of_stage(plan, stage) for stage, _ in staging.tied]
    if not holders:
        return "", ""
    apart = len(holders) < plan.mesh.pp
    ranks = ", ".join(f"ranks[{rank}]" for rank in holders)
    group = "self.tie" if apart else 'self.mesh.get_group("pp")'
    return (
        pipeline_text.TIES.format(ranks=ranks, pp=plan.mesh.pp) if apart else "",
        pipeline_text.SUM_TIES.format(local=_local(plan), group=group),
    )


def _shape(alike: Alike) -> dict[str, str]:
    """Return what a micro-batch is between stages, in code."""
    samples = "*inputs.shape" if alike.by_position else "len(inputs)"
    return {
        "shape": ", ".join([samples, *map(str, alike.sizes)]),
        "dtype": "" if alike.dtype == "float32" else f"dtype=torch.{alike.dtype}, ",
    }


def _run(staging: Staging, division: Division | None) -> str:
    if division is not None and division.divides_logits:
        return pipeline_text.RUN_DIVIDED  # what drops is not divided
    return pipeline_text.RUN_DROPPING if staging.drops else pipeline_text.RUN


def _data_group(plan: Plan) -> str:
    mesh = plan.mesh
    if mesh.dp_replicate > 1 and mesh.dp_shard > 1:
        return 'mesh["dp_replicate", "dp_shard"]._flatten().get_group()'
    return f'mesh.get_group("{"dp_replicate" if mesh.dp_replicate > 1 else "dp_shard"}")'


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
    if "tree_map(" in code:
        imports += passing_text.IMPORTS
    if "Unused(" in code:
        imports += unused_text.IMPORTS
    if plan.shards_parameters:
        imports.append(shard_text.FSDP_IMPORTS[0])
    return imports
