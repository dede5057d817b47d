"""The plan as a few lines of plain torch, to read, keep and change; nothing in them needs parastrat."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from parastrat.emit import python_shard_text as shard_text
from parastrat.emit import python_text as text
from parastrat.emit import python_unused_text as unused_text
from parastrat.emit.python_parts import (
    COMPUTE,
    MESH_IMPORTS,
    build_mesh,
    heading,
    loop,
    policy,
    sorted_imports,
)
from parastrat.emit.python_pipeline import emit_staged
from parastrat.emit.python_tensor import check_divided, emit_divided
from parastrat.emit.text_file import EmitError, TextFile
from parastrat.errors import UnknownFactError
from parastrat.plan import Compile, Recompute
from parastrat.rules.runtime_support import refusals_of
from parastrat.units import counted
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.emit.division import Division
    from parastrat.emit.staging import Staging
    from parastrat.plan import Plan

_BUILT = "name a model that can be built here, with --model path.py:callable or a config.json"


def emit(
    case: Case, division: Division | None = None, staging: Staging | None = None
) -> tuple[TextFile, ...]:
    """Return ``parallelize.py`` for torch 2.11 and later: ``build_mesh`` and ``parallelize(model, mesh)``.

    Args:
        case: the plan and what it was made for.
        division: of the model's layers, which plans with tp need.
        staging: of the model, which plans with pp need.

    Raises:
        EmitError: ``auto_parallelize`` refuses the plan (ep, offload, fp8, ...), or its division or
            staging is lacking.
    """
    plan = case.plan
    check_plan(case)
    if plan.mesh.pp > 1 and staging is None:
        raise EmitError(
            f"this plan is {plan.strategy}, and where its stages are cut is found by tracing the model",
            hint=_BUILT,
        )
    if plan.mesh.tp > 1 and division is None:
        raise EmitError(
            f"this plan is {plan.strategy}, and what of each layer is divided is found by tracing the "
            "model, and proven on its ranks",
            hint=_BUILT,
        )
    if staging is not None:
        return emit_staged(case, staging, division)
    if division is not None:
        return emit_divided(case, division)
    blocks = _has_blocks(plan)
    imports, definitions = _head(case, blocks=blocks)
    body = [
        text.SIGNATURE.format(
            count=counted(plan.mesh.world_size, "rank"),
            mesh="torch.device" if plan.mesh.world_size == 1 else "DeviceMesh",
        ),
        _buffers_check(case),
        text.WEIGHTS.format(dtype="bfloat16" if plan.precision is Precision.BF16 else "float32"),
        *([text.BLOCKS, _count_check(case)] if blocks else []),
        text.RECOMPUTE[plan.recompute],
        _compiled(plan),
        _sharded(case) if plan.shards_parameters else _whole(case),
    ]
    lines = [
        text.HEADER.format(title=heading(case), loop=loop(plan, case.workload.loss_chunks)),
        imports,
        *definitions,
        "".join(body),
    ]
    return (TextFile(path="parallelize.py", text="\n".join(lines)),)


def check_plan(case: Case) -> None:
    """Refuse plans that ``auto_parallelize`` refuses itself, and what is not emitted for any model.

    Raises:
        EmitError: with the nearest that is.
    """
    plan = case.plan
    for finding in refusals_of(plan, case.model):
        raise EmitError(
            f"no plain torch for this plan: {finding.message} ({finding.code})", hint=finding.fix
        )
    if plan.mesh.cp > 1 or plan.mesh.ep > 1:
        what = "blocks work on a rank's positions" if plan.mesh.cp > 1 else "tokens travel to experts"
        raise EmitError(
            f"no plain torch for this plan: it is {plan.strategy}, and how {what} is found and proven as a "
            "model is wrapped",
            hint="emit for a launcher (--to torchrun, --to slurm, ...), whose script calls "
            "auto_parallelize, or --to torchtitan",
        )
    if plan.compile is not Compile.NONE and (plan.mesh.tp > 1 or plan.mesh.pp > 1):
        raise EmitError(
            f"no plain torch for this plan: it is {plan.strategy} with compile = {plan.compile.value}, "
            "which has not been tried so",
            hint="use compile = none (--stack torch), or emit for a launcher (--to torchrun, ...)",
        )
    if plan.mesh.tp > 1 and plan.mesh.pp == 1:
        check_divided(plan)


def _has_blocks(plan: Plan) -> bool:
    """Whether anything is done block by block."""
    return (
        plan.shards_parameters or plan.recompute is not Recompute.NONE or plan.compile is not Compile.NONE
    )


def _head(case: Case, *, blocks: bool) -> tuple[str, list[str]]:
    """Return the imports, and the functions before ``parallelize``."""
    plan, mesh = case.plan, case.plan.mesh
    imports = ["import torch", "from torch import nn"]
    definitions = []
    if mesh.world_size > 1:
        imports += MESH_IMPORTS
        definitions.append(build_mesh(case))
    else:
        definitions.append(text.BUILD_NO_MESH.format(device=json.dumps(case.launch.device)))
    may_route = _may_route(case)
    if may_route and (blocks or mesh.world_size > 1):
        definitions.append(text.ROUTED)
    if blocks:
        imports.append("from collections import Counter")
        outermost = text.OUTERMOST.format(taken="names + experts" if may_route else "names")
        definitions.append(text.REPEATED_BLOCKS + (text.EXPERTS if may_route else "") + outermost)
    imports += text.RECOMPUTE_IMPORTS[plan.recompute]
    definitions += text.RECOMPUTE_DEFINITIONS[plan.recompute]
    if plan.shards_parameters:
        imports += shard_text.FSDP_IMPORTS
        definitions.append(shard_text.FROM_FIRST_RANK)
        if _buffers_may_change(case):
            definitions.append(shard_text.FOLLOW_FIRST_RANK)
        if may_route:
            imports += unused_text.IMPORTS + unused_text.FOLLOW_IMPORTS
            definitions += [unused_text.UNUSED, unused_text.FOLLOW]
    elif mesh.world_size > 1:
        imports.append("from torch.nn.parallel import DistributedDataParallel")
    return sorted_imports(imports), definitions


def _buffers_may_change(case: Case) -> bool:
    """Return whether the checkpoint may have running statistics or the like: unless known, it may."""
    try:
        return case.model.changing_buffers is not False
    except UnknownFactError:
        return True


def _may_route(case: Case) -> bool:
    """Return whether tokens may choose which modules run: unless known, they may."""
    try:
        return case.model.routed is not False
    except UnknownFactError:
        return True


def _buffers_check(case: Case) -> str:
    """Return the refusal of models whose buffers these few lines would get wrong."""
    plan = case.plan
    if plan.shards_parameters and not _buffers_may_change(case):
        return text.NO_BUFFERS
    noted = shard_text.BUFFERS if plan.shards_parameters else ""
    return noted + _statistics_check(plan)


def _statistics_check(plan: Plan) -> str:
    """Return the refusal of batch normalisation where these few lines would get its statistics wrong."""
    if plan.recompute.repeats_modules:
        reason = "recomputation would count each batch of a batch norm twice: plan without it"
    elif plan.precision is Precision.BF16:
        reason = "batch norms need fp32 weights: plan with bf16-mixed"
    else:
        return ""
    return text.NO_STATISTICS.format(reason=reason)


def _compiled(plan: Plan) -> str:
    if plan.compile is not Compile.BLOCK:
        return ""
    return text.COMPILE if plan.recompute is Recompute.NONE else text.COMPILE_WRAPPED


def _count_check(case: Case) -> str:
    """Return the comparison with the number of blocks that the plan was made for, where it is known."""
    try:
        return text.COUNT_CHECK.format(count=case.model.layers)
    except UnknownFactError:
        return ""


def _sharded(case: Case) -> str:
    plan, may_change, may_route = case.plan, _buffers_may_change(case), _may_route(case)
    compute = COMPUTE.get(plan.precision)
    return shard_text.SHARD.format(
        policy=policy(plan),
        reshard=plan.reshard_after_forward,
        norms=shard_text.NORMS if compute and may_change else "",
        follow=shard_text.FOLLOW if may_change else "",
        returned="" if may_route else "return ",
        unused=shard_text.REDUCE_UNUSED if may_route else "",
    )


def _whole(case: Case) -> str:
    compute = COMPUTE.get(case.plan.precision)
    autocast = text.AUTOCAST.format(dtype=compute) if compute else ""
    if case.plan.mesh.world_size == 1:
        return text.MOVE_ALONE + autocast + text.RETURN
    arguments = text.DDP_ARGUMENTS_ROUTED if _may_route(case) else text.DDP_ARGUMENTS
    return text.MOVE + autocast + text.DDP.format(arguments=arguments)
