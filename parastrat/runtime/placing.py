"""A module divided, recomputed, compiled, and sharded or replicated, as its wrapping says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from parastrat.plan import Compile, Recompute
from parastrat.runtime.blocks import called_units
from parastrat.runtime.context_parallel.apply import context_parallel, give_positions
from parastrat.runtime.data_parallel.apply import replicate, replicate_divided, shard
from parastrat.runtime.expert_parallel.apply import expert_parallel
from parastrat.runtime.first_values.filled import fill
from parastrat.runtime.first_values.first_rank import hold_alike, to_device_from_first_rank
from parastrat.runtime.in_graph import compile_forward
from parastrat.runtime.launching.world import release_at_exit
from parastrat.runtime.pipeline.build import adopt, finish, split
from parastrat.runtime.precision import COMPUTE, LossScale, autocast_forward
from parastrat.runtime.recompute import (
    guard_attention,
    recompute_call,
    recompute_in_graph,
    recompute_in_graph_call,
    recomputing,
    replace_module,
)
from parastrat.runtime.tensor_parallel.apply import extent_of, tensor_parallel
from parastrat.runtime.tensors.slots import slots_of
from parastrat.runtime.training.guards import guard
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.starting import Start
    from parastrat.runtime.wrapping import Wrapping


def placed(module: nn.Module, wrapping: Wrapping, start: Start) -> nn.Module:
    """Divide, recompute, compile, shard or replicate: each must see what the ones before made.

    Args:
        module: changed in place; cut already, where there are stages.
        wrapping: of it, with the layout that was chosen; what becomes of the module is noted there.
        start: where its values come from.
    """
    experts = expert_parallel(module, wrapping)
    tensor_parallel(module, wrapping)
    stream = context_parallel(module, wrapping)
    units = _units(module, wrapping)
    if stream is not None:
        give_positions(stream, extent_of(module, wrapping), units)
    model = _placed(module, wrapping, units, experts, start)
    if wrapping.plan.precision is Precision.FP16_MIXED:
        wrapping.loss_scale = LossScale()
    guard(model, wrapping)
    release_at_exit(model)
    return model


def _placed(
    module: nn.Module,
    wrapping: Wrapping,
    units: dict[str, nn.Module],
    experts: dict[str, nn.Module],
    start: Start,
) -> nn.Module:
    """Shard or replicate, with first weights, on the device."""
    if wrapping.pipeline is not None:
        return _in_stages(module, wrapping, wrapping.pipeline, units, experts, start)
    if wrapping.plan.shards_parameters:
        model = shard(module, wrapping, units, experts)
        fill(module, wrapping, start)
        return model
    fill(module, wrapping, start)
    _move(module, wrapping)
    _autocast(module, wrapping)
    if wrapping.plan.mesh.dp == 1:
        return module
    if wrapping.mesh.tp is not None:
        return replicate_divided(module, wrapping, units)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return hold_alike(module, wrapping)
    return replicate(module, wrapping)


def _in_stages(
    module: nn.Module,
    wrapping: Wrapping,
    pipeline: Pipeline,
    units: dict[str, nn.Module],
    experts: dict[str, nn.Module],
    start: Start,
) -> nn.Module:
    """Shard or replicate each stage of this rank, with first weights, on the device."""
    split(pipeline, module)
    if pipeline.sharded:
        for chunk in pipeline.modules.values():
            inside = set(chunk.modules())
            own, held = (
                {name: part for name, part in parts.items() if part in inside} for parts in (units, experts)
            )
            shard(chunk, wrapping, own, held)
            adopt(chunk, module)
    fill(module, wrapping, start)
    if not pipeline.sharded:
        _move(module, wrapping)
        if wrapping.plan.mesh.dp > 1:
            to_device_from_first_rank([*module.parameters(), *module.buffers()], wrapping)
            wrapping.calls.append("# gradients are averaged over mesh['dp_replicate'] at the end of a step")
    for chunk in pipeline.modules.values():
        adopt(module, chunk)
        if not pipeline.sharded:
            _autocast(chunk, wrapping)
    finish(pipeline, module)
    return module


def _move(module: nn.Module, wrapping: Wrapping) -> None:
    if any(slot.tensor.device != wrapping.device for slot in slots_of(module)):
        module.to(wrapping.device)
    wrapping.calls.append(f"model.to({str(wrapping.device)!r})")


def _autocast(module: nn.Module, wrapping: Wrapping) -> None:
    device, precision = wrapping.device.type, wrapping.plan.precision
    if autocast_forward(module, wrapping.device, precision):
        wrapping.calls.append(
            f"model.forward = torch.autocast({device!r}, {COMPUTE[precision]})(model.forward)"
        )


def _units(module: nn.Module, wrapping: Wrapping) -> dict[str, nn.Module]:
    """Return the blocks by name, with the plan's recompute and compile on them."""
    plan, calls, units = wrapping.plan, wrapping.calls, dict[str, nn.Module]()
    compiles = plan.compile is Compile.BLOCK
    # around a graph, a checkpoint would see none of its operators
    in_graph = compiles and plan.recompute is Recompute.SELECTIVE
    for name, block in called_units(wrapping.blocks).items():
        if in_graph:
            recompute_in_graph(block)
        if compiles:
            compile_forward(block, wrapping.mesh.tp)
        units[name] = block if in_graph else recomputing(block, plan.recompute)
        if units[name] is not block:
            replace_module(module, name, units[name])
    if not units:
        return units
    if in_graph:
        calls.append(recompute_in_graph_call(tuple(units)))
    if compiles:
        calls.append(
            f"for block in map(model.get_submodule, {tuple(units)}):\n"
            "    block.forward = torch.compile(block.forward)"
        )
    if plan.recompute is not Recompute.NONE and not in_graph:
        calls.append(recompute_call(plan.recompute, tuple(units)))
    if plan.recompute is Recompute.ATTENTION:
        guard_attention(list(units.values()))
    return units
