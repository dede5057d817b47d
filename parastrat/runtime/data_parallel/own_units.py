"""Parts of blocks that FSDP2 gathers by themselves: norms that keep statistics, and experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

from parastrat.runtime.first_values.first_rank import to_device_from_first_rank
from parastrat.runtime.precision import policy
from parastrat.runtime.tensors.buffers import norms_with_statistics
from parastrat.runtime.tensors.shares import share_of

if TYPE_CHECKING:
    import torch

    from parastrat.plan import Plan
    from parastrat.runtime.wrapping import Wrapping

#: dimensions of a stack of matrices, such as those of all experts
_STACKED = 3


def columns_over(ranks: int) -> Callable[[nn.Parameter], Shard | None]:
    """Return which stacks of matrices FSDP2 shards along rows or columns, where experts do not divide.

    Along the first dimension it would pad them: 8 experts over 64 ranks take the room of 64, all of it in
    what is gathered, and an eighth of the experts on each of the first ranks. Torchtitan does alike.
    """

    def placement(parameter: nn.Parameter) -> Shard | None:
        own: Any = share_of(parameter)
        if own.ndim != _STACKED or own.shape[0] % ranks == 0:
            return None
        return next((Shard(dim) for dim in (1, 2) if own.shape[dim] % ranks == 0), None)

    return placement


def shard_norms(module: nn.Module, wrapping: Wrapping, alone: set[nn.Parameter]) -> list[nn.Module]:
    """Shard each norm that keeps statistics as a unit in fp32: its kernels take no short weights with them.

    Source: https://github.com/pytorch/torchtitan/issues/674 (the remedy of FSDP2's author).
    """
    inside = [norm for norm in norms_with_statistics(module) if norm is not module]
    norms = [norm for norm in inside if any(True for _ in norm.parameters())]
    for norm in norms:
        to_device_from_first_rank(tensors_of(norm), wrapping)
        fully_shard(norm, mesh=wrapping.mesh.data, reshard_after_forward=False, ignored_params=alone)
    if norms:
        wrapping.calls.append(
            "for norm in [part for part in model.modules() if hasattr(part, 'running_mean')]:\n"
            "    fully_shard(norm, mesh=mesh, reshard_after_forward=False)"
        )
    return norms


def shard_experts(experts: Mapping[str, nn.Module], wrapping: Wrapping, *, reshard: bool) -> None:
    """Shard each part of which a rank holds some experts over the ranks that hold the same.

    What it is called with keeps its format: weights of choices are often in fp32.
    """
    mesh = wrapping.mesh.expert_data
    if mesh is None:
        return
    rule = replace(policy(wrapping.plan.precision), cast_forward_inputs=False)
    by_columns, axes = columns_over(mesh.shape[-1]), mesh.mesh_dim_names or ()
    for part in experts.values():
        fully_shard(
            part, mesh=mesh, mp_policy=rule, reshard_after_forward=reshard, shard_placement_fn=by_columns
        )
    wrapping.calls.append(
        f"for name in {tuple(experts)}:\n"
        f"    fully_shard(model.get_submodule(name), reshard_after_forward={reshard}, "
        f"mesh=experts[{axes}], mp_policy={policy_text(wrapping.plan)})"
    )


def tensors_of(unit: nn.Module) -> list[torch.Tensor]:
    """Return parameters and buffers."""
    return [*unit.parameters(), *unit.buffers()]


def policy_text(plan: Plan) -> str:
    """Return the plan's number formats as plain torch has them."""
    rule = policy(plan.precision)
    if rule.param_dtype is None and rule.reduce_dtype is None:
        return "MixedPrecisionPolicy()"
    return f"MixedPrecisionPolicy(param_dtype={rule.param_dtype}, reduce_dtype={rule.reduce_dtype})"
