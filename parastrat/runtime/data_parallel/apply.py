"""A module on one device, replicated (DDP) or sharded (FSDP2, HSDP), with torch's own wrappers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from parastrat.errors import WrapError
from parastrat.plan import Plan
from parastrat.runtime.blocks import has_lists_of_experts, has_routed_parts
from parastrat.runtime.data_parallel.own_units import (
    columns_over,
    policy_text,
    shard_experts,
    shard_norms,
    tensors_of,
)
from parastrat.runtime.data_parallel.replicated import Replicated
from parastrat.runtime.first_values.first_rank import to_device_from_first_rank
from parastrat.runtime.precision import COMPUTE, policy
from parastrat.runtime.refusals import check_calls
from parastrat.runtime.tensors.buffers import has_changing_buffers
from parastrat.runtime.training.first_ranks_buffers import follow_first_rank
from parastrat.runtime.training.gathered import Left
from parastrat.runtime.training.reached import Reached
from parastrat.runtime.training.scalars import Scalars, scalars_in
from parastrat.runtime.training.seen import refuse_second_gradients, see_outputs
from parastrat.runtime.training.swapped import refuse_swapped
from parastrat.runtime.training.writes import refuse_assigned_data, refuse_lost_writes
from parastrat.runtime.ways import chooses_ways, outside_of

if TYPE_CHECKING:
    from parastrat.runtime.wrapping import Wrapping


def replicate(module: nn.Module, wrapping: Wrapping) -> DistributedDataParallel:
    """Wrap in DDP, which sends rank 0's weights to all ranks.

    Buffers are sent again before every forward only where the checkpoint has some: those are running
    statistics; the others are constants.
    """
    device_ids = [wrapping.device.index] if wrapping.device.type != "cpu" else None
    group = wrapping.mesh.data_group if wrapping.mesh.data is not wrapping.mesh.whole else None
    # the reducer registers on gradients of the default stream's graph; views of its buckets save a copy
    # an expert may see no token of a rank, and a layer may be left out at random; what a model never uses
    # shows in the first step
    unused = has_routed_parts(module) or chooses_ways(module)
    wrapped = Replicated(
        module,
        device_ids=device_ids,
        gradient_as_bucket_view=True,
        process_group=group,
        find_unused_parameters=unused,
    )
    own_group = "" if group is None else ", process_group=mesh['dp_replicate'].get_group()"
    finding = ", find_unused_parameters=True" if unused else ""
    wrapping.calls.append(
        f"model = DistributedDataParallel(model, device_ids={device_ids}, "
        f"gradient_as_bucket_view=True{own_group}{finding})"
    )
    if not has_changing_buffers(module):
        wrapped.broadcast_buffers = False
        wrapping.calls.append("model.broadcast_buffers = False")
    wrapping.reached = Reached(wrapped, wrapping)
    return wrapped


def replicate_divided(module: nn.Module, wrapping: Wrapping, units: Mapping[str, nn.Module]) -> nn.Module:
    """Replicate a module whose parameters are DTensors already: their gradients are averaged unit by unit.

    DDP takes plain tensors alone; this is torch's own replication for DTensors, built on FSDP2.

    Raises:
        WrapError: if this torch does not have it.
    """
    # private; nothing public replicates DTensors
    if find_spec("torch.distributed._composable.replicate_with_fsdp") is None:
        raise WrapError(
            f"torch {version('torch')} has no replication of divided parameters, which ddp with tp needs",
            hint="plan the data axis as dp_shard (shard = parameters), or use torch 2.13",
        )
    from torch.distributed._composable.replicate_with_fsdp import replicate as replicated  # noqa: PLC0415

    mesh = wrapping.mesh.data
    _without_gradients_of_nothing(module, wrapping)
    own = _without_shared(module, units)
    for unit in (*own.values(), module):
        replicated(unit, mesh=mesh)
    _guard((*own.values(), module), wrapping.plan)
    wrapping.calls.append(
        "from torch.distributed._composable.replicate_with_fsdp import replicate\n"
        f"for name in {(*own, '')}:\n    replicate(model.get_submodule(name), mesh=mesh['dp_replicate'])"
    )
    _reduce_unused(module, wrapping)
    follow_first_rank(module, wrapping)
    return module


def shard(
    module: nn.Module,
    wrapping: Wrapping,
    units: Mapping[str, nn.Module],
    experts: Mapping[str, nn.Module] | None = None,
) -> nn.Module:
    """Shard in place with FSDP2: each unit alone, the rest (tied weights among it) in the root unit.

    Meta parameters stay meta. Real ones become those of rank 0, one unit on the device at a time.

    Args:
        module: in which FSDP2 is mixed.
        wrapping: of the model.
        units: parts that are gathered one by one, by name.
        experts: parts inside of them of which this rank holds some experts, by name.
    """
    plan = wrapping.plan
    check_calls(module, units.values())
    _without_gradients_of_nothing(module, wrapping)
    _in_rows(module, wrapping)
    # a pipeline's stages keep gathered weights for all micro-batches, as estimates say: zero-bubble
    # schedules find no gradients for those that were freed after the forward
    reshard = plan.reshard_after_forward and plan.mesh.pp == 1
    keywords: dict[str, Any] = {"mesh": wrapping.mesh.data, "mp_policy": policy(plan.precision)}
    by_columns = columns_over(plan.mesh.dp_shard * plan.mesh.cp)
    stacks = [name for name, parameter in module.named_parameters() if by_columns(parameter)]
    if stacks:
        keywords["shard_placement_fn"] = by_columns
    _average_scalars(module, wrapping)
    if alone := scalars_in(module):
        keywords["ignored_params"] = alone
    own = _without_shared(module, units)
    shard_experts(experts or {}, wrapping, reshard=reshard)
    if plan.precision in COMPUTE:
        norms = shard_norms(module, wrapping, alone)
        own = {name: unit for name, unit in own.items() if unit not in norms}
    for unit in own.values():
        to_device_from_first_rank(tensors_of(unit), wrapping)
        fully_shard(unit, reshard_after_forward=reshard, **keywords)
    to_device_from_first_rank(tensors_of(module), wrapping)
    # backward begins with the root unit: once freed, it would be gathered again at once
    fully_shard(module, reshard_after_forward=False, **keywords)
    _guard((*own.values(), module), wrapping.plan)
    said = f"mesh=mesh, mp_policy={policy_text(plan)}"
    if stacks:
        said += f", shard_placement_fn=<rows or columns of {len(stacks)} stacks such as {stacks[0]}>"
    if alone:
        said += f", ignored_params=<{len(alone)} without a dimension>"
    if own:
        wrapping.calls.append(
            f"for name in {tuple(own)}:\n"
            f"    fully_shard(model.get_submodule(name), "
            f"reshard_after_forward={reshard}, {said})"
        )
    wrapping.calls.append(f"fully_shard(model, reshard_after_forward=False, {said})")
    _reduce_unused(module, wrapping)
    follow_first_rank(module, wrapping)
    return module


def _guard(units: Sequence[nn.Module], plan: Plan) -> None:
    """Let FSDP2 hear of all backwards, and refuse what it would lose; the root is the last of its units."""
    see_outputs(units)
    refuse_second_gradients(units)
    refuse_lost_writes(units[-1])
    refuse_assigned_data(units[-1])
    refuse_swapped(units[-1])
    # last, so that what it frees before a forward is seen by the others
    Left(units[-1], is_stage=plan.mesh.pp > 1)


def _without_gradients_of_nothing(module: nn.Module, wrapping: Wrapping) -> None:
    """Ask no gradients of parameters without elements, such as tables of no tokens: FSDP2 reduces none.

    Torch 2.13 fails there: "_chunk_cat expects non-empty tensor".
    """
    empty = [name for name, parameter in module.named_parameters() if not parameter.numel()]
    for name in empty:
        module.get_parameter(name).requires_grad_(False)
    if empty:
        wrapping.calls.append(
            f"for name in {tuple(empty)}:\n    model.get_parameter(name).requires_grad_(False)"
        )


def _in_rows(module: nn.Module, wrapping: Wrapping) -> None:
    """Lay parameters out in rows, of which alone FSDP2 takes shards: not transposed, nor channels last."""
    others = [name for name, parameter in module.named_parameters() if not parameter.is_contiguous()]
    for name in others:
        parameter = module.get_parameter(name)
        parameter.data = parameter.data.contiguous()
    if others:
        wrapping.calls.append(
            f"for name in {tuple(others)}:\n    parameter = model.get_parameter(name)\n"
            "    parameter.data = parameter.data.contiguous()"
        )


def _reduce_unused(module: nn.Module, wrapping: Wrapping) -> None:
    """Reduce the gradients of experts or layers that a rank did not choose, as zeros: all must send alike.

    Args:
        module: sharded by FSDP2, or replicated by what is built on it.
        wrapping: of the model.

    Raises:
        WrapError: if this torch cannot, and some will be unused; its ranks would wait for each other, or
            mix gradients up.
    """
    reduce_unused = getattr(module, "set_reduce_scatter_unused_params", None)
    chooses = chooses_ways(module)
    if not (has_routed_parts(module) or chooses):
        return
    if reduce_unused is None and not (has_lists_of_experts(module) or chooses):
        return
    if reduce_unused is None:
        raise WrapError(
            f"FSDP2 of torch {version('torch')} leaves out experts or layers that a rank did not choose, "
            "though another may have",
            hint="use torch 2.13, or plan ddp without tp (shard = none)",
        )
    reduce_unused(True)
    wrapping.calls.append("model.set_reduce_scatter_unused_params(True)")
    # a stack of all experts has zeros on one device, too, but no gradient where nobody chose any of them
    wrapping.reduce_unused.append(module)


def _without_shared(module: nn.Module, units: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Leave out units without parameters, and those that share one with a part outside of them.

    All owners of a tied parameter must be in one FSDP unit; what is left out falls to the root unit. So do
    units that a rank may leave out at random: the others would wait for it.
    """
    units = outside_of(module, units)
    owners: dict[nn.Parameter, set[str]] = defaultdict(set)
    inside: dict[nn.Module, set[str]] = defaultdict(set)
    for name, unit in units.items():
        for part in unit.modules():  # which other units may hold, too
            inside[part].add(name)
    for part in module.modules():
        for parameter in part.parameters(recurse=False):
            owners[parameter] |= inside.get(part) or {""}
    return {
        name: unit
        for name, unit in units.items()
        if (held := list(unit.parameters())) and all(len(owners[parameter]) == 1 for parameter in held)
    }


def _average_scalars(module: nn.Module, wrapping: Wrapping) -> None:
    """Average the gradients of a module's parameters without a dimension, from now on.

    Args:
        module: the root of what FSDP2 shards; those of a pipeline's stages are several.
        wrapping: of the model.
    """
    if not scalars_in(module):
        return
    if wrapping.scalars is None:
        wrapping.scalars = Scalars(wrapping.mesh)
    wrapping.scalars.add(module)
    if wrapping.plan.mesh.pp == 1:
        wrapping.scalars.follow(module, wrapping)
    wrapping.calls.append("# gradients of parameters without a dimension are averaged over the data ranks")
