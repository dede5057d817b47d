"""``auto_parallelize``: a plan applied to a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from parastrat.collection import setting_aside
from parastrat.errors import ParastratError
from parastrat.plan import Compile, Plan, Recompute
from parastrat.runtime.agreement import agree, from_first, together
from parastrat.runtime.blocks import called_units, repeated_blocks
from parastrat.runtime.caches import without_caches
from parastrat.runtime.data_parallel import (
    replicate,
    replicate_divided,
    shard,
)
from parastrat.runtime.filled import fill
from parastrat.runtime.first_rank import hold_alike, to_device_from_first_rank
from parastrat.runtime.launching.world import (
    backend_string,
    current_world,
    join_process_group,
    own_device,
    release_at_exit,
)
from parastrat.runtime.mesh import rank_mesh
from parastrat.runtime.on_meta import build_on_meta, give_attributes
from parastrat.runtime.pipeline.build import adopt, cut_module, finish, split
from parastrat.runtime.precision import COMPUTE, LossScale, autocast_forward, cast_weights
from parastrat.runtime.recompute import guard_attention, recompute_call, recomputing, replace_module
from parastrat.runtime.refusals import (
    check_complex,
    check_fingerprint,
    check_gradients,
    check_model,
    check_optimizers,
    check_plan,
    check_scalars,
    check_world,
)
from parastrat.runtime.slots import slots_of
from parastrat.runtime.starting import Start, shared_inputs
from parastrat.runtime.stated import Choice, backend, device_type, stated_choice
from parastrat.runtime.tensor_parallel.apply import choose_layout, tensor_parallel
from parastrat.runtime.training.guards import guard
from parastrat.runtime.training.stale import replacing
from parastrat.runtime.training.timed import time_steps
from parastrat.runtime.training.told import Told
from parastrat.runtime.wrapping import Wrapping, wrapping_of
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.runtime.pipeline.pipelined import Pipeline
    from parastrat.runtime.replay import Record
    from parastrat.workload import Workload


def auto_parallelize(  # noqa: PLR0913  (the public face: all but the first are optional keywords)
    model: nn.Module | Callable[[], nn.Module],
    *,
    plan: Plan | str | Path | None = None,
    sample_inputs: Any = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    workload: Workload | None = None,
    checkpoint: str | Path | None = None,
    allow_pipeline: bool = False,
) -> nn.Module:
    """Return the model on this process's device, wrapped as the plan says.

    Runs under torchrun, srun, mpirun, ``parastrat run`` or alone; initialises the process group if
    nobody has. The result is torch's own: the module itself for one process, a
    ``DistributedDataParallel``, or the module with ``FSDPModule`` mixed in.

    Args:
        model: A module, which is wrapped as it is, with rank 0's weights; or a callable without arguments
            that builds one. The callable runs on the meta device, so that each rank only ever holds its
            shard and one block.
        plan: A plan or the path of a plan.toml; else ``$PARASTRAT_PLAN``; else decided now.
        sample_inputs: One micro-batch as the forward takes it (tensor, tuple or dict), to decide and to
            prove a tensor-parallel layout; the proof makes its own where the model shows what it takes.
        loss_fn: What ``forward_backward`` uses where it is given none.
        workload: The global batch and number format; only to decide.
        checkpoint: Weights to begin with: a file of ``torch.save`` or safetensors, a model's folder as
            Hugging Face has it (under the names that the module has), or one of ``save_checkpoint`` or
            ``torch.distributed.checkpoint``. Without one, a callable's weights come from
            ``reset_parameters``, ``init_weights`` or ``_init_weights``, and from what it writes and draws
            itself.
        allow_pipeline: Reserved for plans that need ``forward_backward``: pipelines and accumulation.

    Raises:
        MismatchError: if the plan is for another world or model, or the ranks differ.
        WrapError: if the plan cannot be applied, a weight has no initial value, or a live optimizer holds
            parameters that would be replaced.
    """
    (choice, failure), world = _stated(plan), current_world()
    device = own_device(device_type(choice), world)
    if world.world_size > 1:
        join_process_group(backend_string(backend(choice, device.type), device.type), device)
    with Told():
        module, record = together(lambda: _built(model, failure))
        if choice is None:
            from parastrat.runtime.decide import Example, decide  # noqa: PLC0415  (search and probe)

            given = Example(inputs=sample_inputs, workload=workload, accumulates=allow_pipeline)
            choice = from_first(lambda: decide(module, given, world))
        decided = choice
        together(lambda: _check(module, decided))
        agree(decided.plan, module)
        start = Start(
            record=record,
            checkpoint=checkpoint,
            sample_inputs=shared_inputs(sample_inputs, decided.plan),
            sequence_length=decided.sequence_length,
        )
        with replacing(module, decided.plan):
            wrapped = wrap(module, decided.plan, device, start)
    wrapping_of(wrapped).loss_fn = loss_fn
    time_steps(wrapped)
    return wrapped


def _stated(plan: Plan | str | Path | None) -> tuple[Choice | None, ParastratError | None]:
    """Return the stated plan or why it cannot be read: the other ranks must hear of it first."""
    try:
        return stated_choice(plan), None
    except ParastratError as error:
        return None, error


def _built(
    model: nn.Module | Callable[[], nn.Module], failure: ParastratError | None
) -> tuple[nn.Module, Record | None]:
    if failure is not None:
        raise failure
    if isinstance(model, nn.Module) or not callable(model):
        return check_model(model), None
    module, record = build_on_meta(model)
    return check_model(module), record


def _check(module: nn.Module, choice: Choice) -> None:
    check_world(choice.plan, dist.get_world_size() if dist.is_initialized() else 1)
    check_plan(choice.plan)
    check_scalars(module, choice.plan)
    check_complex(module, choice.plan)
    check_gradients(module, choice.plan)
    if choice.fingerprint is not None:
        check_fingerprint(module, choice.fingerprint)
    check_optimizers(module, choice.plan)


# traces look for what they left behind, each among all objects otherwise
@setting_aside()
def wrap(module: nn.Module, plan: Plan, device: torch.device, start: Start) -> nn.Module:
    """Divide, recompute, compile, shard or replicate: each must see what the ones before made."""
    calls: list[str] = []
    wrapping = Wrapping(
        plan=plan,
        device=device,
        mesh=rank_mesh(plan, device, calls),
        blocks=repeated_blocks(module),
        calls=calls,
    )
    if without_caches(module):
        calls.append("model.config.use_cache = False")
    give_attributes(module, start.record, device)
    if changed := cast_weights(module, plan.precision):
        wrapping.cast = tuple(changed)
        calls.append(
            f"# {len(changed)} parameters cast to the plan's {plan.precision}, such as {changed[0]}"
        )
    # a layout is proven on a copy of the whole, which no stage holds
    choose_layout(module, wrapping, sample_inputs=start.sample_inputs, record=start.record)
    if wrapping.mesh.pp is not None:
        wrapping.pipeline = cut_module(module, wrapping, wrapping.mesh.pp, start)
    tensor_parallel(module, wrapping)
    units = _units(module, wrapping)
    model = _placed(module, wrapping, units, start)
    if plan.precision is Precision.FP16_MIXED:
        wrapping.loss_scale = LossScale()
    guard(model, wrapping)
    release_at_exit(model)
    return model


def _placed(module: nn.Module, wrapping: Wrapping, units: dict[str, nn.Module], start: Start) -> nn.Module:
    """Shard or replicate, with first weights, on the device."""
    if wrapping.pipeline is not None:
        return _in_stages(module, wrapping.pipeline, units, start)
    if wrapping.plan.shards_parameters:
        model = shard(module, wrapping, units)
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
    module: nn.Module, pipeline: Pipeline, units: dict[str, nn.Module], start: Start
) -> nn.Module:
    """Shard or replicate each stage of this rank, with first weights, on the device."""
    wrapping = pipeline.wrapping
    split(pipeline, module)
    if pipeline.sharded:
        for chunk in pipeline.modules.values():
            inside = set(chunk.modules())
            shard(chunk, wrapping, {name: unit for name, unit in units.items() if unit in inside})
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
    for name, block in called_units(wrapping.blocks).items():
        unit = recomputing(block, plan.recompute, keeps=plan.compile is not Compile.BLOCK)
        if unit is not block:
            replace_module(module, name, unit)
        if plan.compile is Compile.BLOCK:
            unit.compile()
        units[name] = unit
    if units and plan.recompute is not Recompute.NONE:
        calls.append(recompute_call(plan.recompute, tuple(units)))
        if plan.recompute is Recompute.ATTENTION:
            guard_attention(list(units.values()))
    if units and plan.compile is Compile.BLOCK:
        calls.append(f"for name in {tuple(units)}:\n    model.get_submodule(name).compile()")
    return units
