"""Which plans and models ``auto_parallelize`` applies, and what it says of the others."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import MismatchError, UsageError, WrapError
from parastrat.plan import Compile, Offload, Plan, Recompute, Shard
from parastrat.runtime.blocks import parameter_count, repeated_blocks
from parastrat.runtime.wrapping import is_wrapped
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.parse import ModelFingerprint


def check_world(plan: Plan, world_size: int) -> None:
    """Refuse a plan for another number of processes.

    Raises:
        MismatchError: naming both numbers.
    """
    if plan.mesh.world_size != world_size:
        raise MismatchError(
            f"plan is for {plan.mesh.world_size} ranks ({plan.mesh}), {world_size} "
            f"{'was' if world_size == 1 else 'were'} started",
            hint="re-plan with --replan, or check it here with `parastrat verify`",
        )


def check_fingerprint(model: nn.Module, fingerprint: ModelFingerprint) -> None:
    """Refuse a plan that was made for another model.

    Raises:
        MismatchError: naming the parameters and repeated blocks of both.
    """
    parameters, blocks = parameter_count(model), repeated_blocks(model).count
    planned = (fingerprint.parameters or parameters, fingerprint.blocks or blocks)
    if planned != (parameters, blocks):
        raise MismatchError(
            f"plan is for {fingerprint.ref or 'a model'} with {planned[0]:,} parameters in {planned[1]} "
            f"repeated blocks; this {type(model).__name__} has {parameters:,} in {blocks}",
            hint="re-plan for this model (`parastrat recommend`), or build the model that was planned",
        )


def check_plan(plan: Plan) -> None:
    """Refuse plans that this runtime does not apply, and name the nearest that it does.

    Raises:
        WrapError: for sharded optimizer or gradients alone, for cp, ep, tp with pp, offload and fp8.
    """
    mesh = plan.mesh
    if plan.shard in {Shard.OPTIMIZER, Shard.GRADIENTS}:
        stage = 1 if plan.shard is Shard.OPTIMIZER else 2
        raise WrapError(
            f"the plan shards the {plan.shard.value} alone (ZeRO-{stage}); auto_parallelize does not",
            hint="FSDP2 that keeps parameters gathered between forward and backward needs no more memory: "
            f"shard = parameters, reshard_after_forward = false, {mesh} "
            f"(parastrat estimate --strategy fsdp2 --dp-shard {mesh.dp_shard})",
        )
    axes = [axis for axis in ("cp", "ep") if getattr(mesh, axis) > 1]
    if axes:
        data = replace(
            plan, mesh=replace(mesh, pp=1, cp=1, tp=1, ep=1, dp_shard=mesh.world_size // mesh.dp_replicate)
        )
        nearest = replace(data, shard=Shard.PARAMETERS).strategy
        raise WrapError(
            f"auto_parallelize does not apply {', '.join(axes)} yet; the plan is {plan.strategy} ({mesh})",
            hint=f"nearest plan that it applies: {nearest} over {data.mesh} "
            f"(parastrat recommend --pp 1 --cp 1 --tp 1 --ep 1), or emit this one for a framework",
        )
    unsupported = {
        f"offload = {plan.offload.value}": plan.offload is not Offload.NONE,
        f"precision = {plan.precision.value}": plan.precision is Precision.FP8,
        "recompute = attention with compile = block": plan.recompute is Recompute.ATTENTION
        and plan.compile is Compile.BLOCK,
        "compile = block with tp": plan.compile is Compile.BLOCK and mesh.tp > 1,
        "tp with pp": mesh.tp > 1 and mesh.pp > 1,
        "compile = block with pp": plan.compile is Compile.BLOCK and mesh.pp > 1,
        "shard = none over dp_shard": plan.shard is Shard.NONE and mesh.dp_shard > 1,
    }
    for what, wanted in unsupported.items():
        if wanted:
            raise WrapError(f"auto_parallelize does not apply {what}", hint=_REMEDIES[what.split(" = ")[0]])


_REMEDIES = {
    "tp with pp": "plan --tp 1 with pp and FSDP2, or --pp 1 with tp and FSDP2",
    "compile": "plan compile = none",
    "offload": "plan --offload none; recompute or more devices also save memory",
    "precision": "plan --precision bf16-mixed",
    "recompute": "plan --recompute selective, or compile = none",
    "shard": "replicas are dp_replicate: plan --strategy ddp",
}


def check_model(model: object) -> nn.Module:
    """Return a module that nobody has wrapped.

    Raises:
        UsageError: for something else than a module.
        WrapError: for a module that is wrapped already.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"auto_parallelize got a {type(model).__name__}",
            hint="pass an nn.Module, or a callable without arguments that returns one",
        )
    if is_wrapped(model) or isinstance(model, DistributedDataParallel) or _has_sharded(model):
        raise WrapError(
            f"this {type(model).__name__} is already wrapped",
            hint="call auto_parallelize once, on the plain module, and use what it returns",
        )
    return model


def _has_sharded(model: nn.Module) -> bool:
    return any(type(parameter.data) is not torch.Tensor for parameter in model.parameters())


def check_optimizers(model: nn.Module, plan: Plan) -> None:
    """Refuse to replace parameters that a live optimizer holds: it would train nothing.

    DDP and a single process keep the parameters, so an optimizer built before stays good.

    Raises:
        WrapError: naming the optimizer and one of its parameters.
    """
    replaces = plan.shard is Shard.PARAMETERS and plan.mesh.dp_shard > 1
    if not (replaces or plan.mesh.tp > 1 or plan.mesh.pp > 1):
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for candidate in gc.get_objects():
        # type() rather than isinstance: proxies among the objects may run code when asked for their class
        if not issubclass(type(candidate), torch.optim.Optimizer):
            continue
        for group in candidate.param_groups:
            for parameter in group["params"]:
                if id(parameter) in names:
                    raise WrapError(
                        f"an optimizer ({type(candidate).__name__}) built before auto_parallelize holds "
                        f"{names[id(parameter)]}, which {plan.strategy} replaces: it would train nothing",
                        hint="build the optimizer after auto_parallelize, from the model that it returns",
                    )
