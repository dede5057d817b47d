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
from parastrat.plan import Plan
from parastrat.runtime.blocks import repeated_blocks
from parastrat.runtime.caches import without_caches
from parastrat.runtime.choosing import choose_divisions
from parastrat.runtime.communication.agreement import agree, from_first, together
from parastrat.runtime.communication.mesh import rank_mesh
from parastrat.runtime.communication.told import Told
from parastrat.runtime.copying import let_copy, origin_of
from parastrat.runtime.first_values.on_meta import build_on_meta, give_attributes
from parastrat.runtime.launching.world import (
    backend_string,
    current_world,
    join_process_group,
    own_device,
)
from parastrat.runtime.pipeline.build import cut_module
from parastrat.runtime.placing import placed
from parastrat.runtime.precision import cast_weights
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
from parastrat.runtime.releases import warn_of_untried
from parastrat.runtime.starting import Start, shared_inputs
from parastrat.runtime.stated import Choice, backend, device_type, stated_choice
from parastrat.runtime.training.stale import replacing
from parastrat.runtime.training.timed import time_steps
from parastrat.runtime.wrapping import Wrapping, note_latest, wrapping_of

if TYPE_CHECKING:
    from parastrat.runtime.first_values.replay import Record
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
    ``DistributedDataParallel``, or the module with ``FSDPModule`` mixed in. ``copy.deepcopy`` of it is a
    divided model of its own, made by each rank for itself; of a pipeline it is refused.

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
    if world.rank == 0:
        warn_of_untried()
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
    let_copy(wrapped)
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
    """Choose how the module is divided, and do so; what it becomes is the latest wrapped model."""
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
    choose_divisions(module, wrapping, sample_inputs=start.sample_inputs, record=start.record)
    if wrapping.mesh.pp is not None:
        wrapping.pipeline = cut_module(module, wrapping, wrapping.mesh.pp, start)
    wrapping.origin = origin_of(module, plan)
    model = placed(module, wrapping, start)
    note_latest(model)
    return model
