"""Which plans and models ``auto_parallelize`` applies, and what it says of the others."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parallel import DistributedDataParallel

from parastrat.collection import instances
from parastrat.errors import MismatchError, UsageError, WrapError
from parastrat.plan import Plan
from parastrat.rules.runtime_support import refusals_of
from parastrat.runtime.blocks import parameter_count, repeated_blocks, sparse_table
from parastrat.runtime.tensors.slots import check_shapes
from parastrat.runtime.wrapped import is_wrapped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
            hint="re-plan for this model (`parastrat recommend`), or build the model that was planned; "
            "where a script wraps several, give each its own: auto_parallelize(other, plan='other.toml')",
        )


def check_plan(plan: Plan) -> None:
    """Refuse plans that this runtime does not apply, and name the nearest that it does.

    Raises:
        WrapError: with what the first rule says that the plan breaks, by its code.
    """
    for finding in refusals_of(plan):
        raise WrapError(f"{finding.message} ({finding.code})", hint=finding.fix)


def check_scalars(model: nn.Module, plan: Plan) -> None:
    """Refuse parameters without a dimension where FSDP2 holds divided ones; else they stay whole.

    Raises:
        WrapError: naming one of them.
    """
    if plan.mesh.tp == 1 or not _held_by_fsdp2(plan):
        return
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise WrapError(
                f"FSDP2 takes no parameter without a dimension beside tp, and {name} is a single number",
                hint="give it the shape (1,) in the model, or plan without tp: parastrat recommend --tp 1",
            )


def check_complex(model: nn.Module, plan: Plan) -> None:
    """Refuse complex parameters beside real ones where FSDP2 would gather both: it takes one format.

    Raises:
        WrapError: naming one of each.
    """
    if not _held_by_fsdp2(plan):
        return
    seen = set[nn.Parameter]()
    for unit in (*repeated_blocks(model).modules, model):
        own = [
            parameter
            for parameter in unit.parameters()
            if parameter not in seen and parameter.requires_grad
        ]
        seen.update(own)
        if len({parameter.is_complex() for parameter in own}) > 1:
            names = {parameter: name for name, parameter in model.named_parameters()}
            wave = next(parameter for parameter in own if parameter.is_complex())
            other = next(parameter for parameter in own if not parameter.is_complex())
            raise WrapError(
                f"FSDP2 gathers parameters of one format at once; {names[wave]} is {wave.dtype}, and "
                f"{names[other]} beside it {other.dtype}",
                hint="hold it as real numbers, torch.view_as_real(...), and view them as complex in the "
                "forward, or plan without FSDP2: parastrat recommend --strategy ddp",
            )


def _held_by_fsdp2(plan: Plan) -> bool:
    """Return whether FSDP2 holds parameters: layers that tp divided are replicated by it, too."""
    return plan.shards_parameters or (plan.mesh.tp > 1 and plan.mesh.dp_replicate > 1)


def check_gradients(model: nn.Module, plan: Plan) -> None:
    """Refuse gradients that parameters would not get once they are replaced by shards.

    Raises:
        WrapError: the model is compiled, a parameter has a hook of its own, or an embedding makes sparse
            gradients or rewrites its rows.
    """
    _check_lookups(model, plan)
    scripted = (name for name, part in model.named_modules() if isinstance(part, torch.jit.ScriptModule))
    if plan.mesh.world_size > 1 and (name := next(scripted, None)) is not None:
        raise WrapError(
            f"{name or 'the model'} is compiled by torch.jit, which lets nobody replace its weights",
            hint="pass the module that torch.jit.script or torch.jit.trace was given",
        )
    if not (plan.shards_parameters or plan.mesh.tp > 1):
        return
    # whose class is not imported where nobody compiles
    if type(model).__module__.startswith("torch._dynamo."):
        raise WrapError(
            f"the model is compiled already, and {plan.strategy} replaces the parameters of what it runs",
            hint="pass the module itself, and compile what auto_parallelize returns, or plan with "
            "--stack torch-compile",
        )
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:  # noqa: SLF001  (no public accessor)
            raise WrapError(
                f"{name} has a hook on its gradient, and {plan.strategy} replaces the parameter: the hook "
                "would never run",
                hint="change p.grad between backward and optimizer.step(), or plan ddp: "
                "parastrat recommend --strategy ddp",
            )
    table = sparse_table(model)
    if table is not None:
        raise WrapError(
            f"{table or 'the model'} makes sparse gradients, which {plan.strategy} cannot divide",
            hint="build it with sparse=False, or plan ddp: parastrat recommend --strategy ddp",
        )


def _check_lookups(model: nn.Module, plan: Plan) -> None:
    """Refuse embeddings for which it counts what else was looked up: each rank looks up others."""
    for name, part in model.named_modules():
        if not isinstance(part, nn.Embedding | nn.EmbeddingBag):
            continue
        if part.max_norm is not None and plan.mesh.dp * plan.mesh.tp > 1:
            raise WrapError(
                f"{name or 'the model'} renormalises the rows that it looks up (max_norm), and each rank "
                "looks up others: their weights would differ",
                hint="build it without max_norm, and renormalise all rows after optimizer.step()",
            )
        if part.scale_grad_by_freq and plan.mesh.dp > 1:
            raise WrapError(
                f"{name or 'the model'} divides gradients by how often rows were looked up "
                "(scale_grad_by_freq), which each rank counts in its own samples alone",
                hint="build it without scale_grad_by_freq, and divide p.grad by counts over all samples",
            )


def check_calls(model: nn.Module, units: Iterable[nn.Module]) -> None:
    """Refuse blocks that their owner runs by ``block.forward(...)``: hooks, and so FSDP2, never see them.

    Args:
        model: that holds the units.
        units: the blocks that are to be sharded one by one.

    Raises:
        WrapError: naming the class that does.
    """
    held = set(units)
    for kind in {type(part) for part in model.modules() if not held.isdisjoint(_run_by(part))}:
        try:
            source = inspect.getsource(kind)
        except (OSError, TypeError):  # made at run time
            continue
        if re.search(r"(?<!super\(\))\.forward\(", source):
            raise WrapError(
                f"{kind.__name__} runs its blocks by .forward(...), past the hooks by which FSDP2 gathers "
                "their weights",
                hint="let the model call them, block(...), or plan ddp: parastrat recommend --strategy ddp",
            )


def _run_by(part: nn.Module) -> Iterator[nn.Module]:
    """Yield what a module's own forward runs: its children, through lists and dicts, which have none."""
    if isinstance(part, nn.ModuleList | nn.ModuleDict):
        return
    waiting = list(part.children())
    while waiting:
        child = waiting.pop()
        if isinstance(child, nn.ModuleList | nn.ModuleDict):
            waiting += child.children()
        else:
            yield child


def check_model(model: object) -> nn.Module:
    """Return a module that nobody has wrapped.

    Raises:
        UsageError: for something else than a module.
        WrapError: for a module that is wrapped already.
        ModelError: for lazy layers that have not run.
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
    check_shapes(model)
    return model


def _has_sharded(model: nn.Module) -> bool:
    # a script that is dry-run builds its model of fake ones
    return any(type(parameter.data) not in (torch.Tensor, FakeTensor) for parameter in model.parameters())


def check_optimizers(model: nn.Module, plan: Plan) -> None:
    """Refuse to replace parameters that a live optimizer holds: it would train nothing.

    DDP and a single process keep the parameters, so an optimizer built before stays good.

    Raises:
        WrapError: naming the optimizer and one of its parameters.
    """
    if not (plan.shards_parameters or plan.mesh.tp > 1 or plan.mesh.pp > 1):
        return
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for candidate in instances(_with_subclasses(torch.optim.Optimizer)):
        for group in candidate.param_groups:
            for parameter in group["params"]:
                if id(parameter) in names:
                    raise WrapError(
                        f"an optimizer ({type(candidate).__name__}) built before auto_parallelize holds "
                        f"{names[id(parameter)]}, which {plan.strategy} replaces: it would train nothing",
                        hint="build the optimizer after auto_parallelize, from the model that it returns",
                    )


def _with_subclasses(cls: type[Any]) -> set[type[Any]]:
    return {cls}.union(*(_with_subclasses(each) for each in cls.__subclasses__()))
