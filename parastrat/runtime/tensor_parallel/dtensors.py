"""Activations as DTensors, for code that names sizes of the whole between a column and its row."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.experimental import implicit_replication, register_sharding
from torch.distributed.tensor.placement_types import _StridedShard

from parastrat.runtime.tensor_parallel.own_values import differentiated_once

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def shares_known(y: torch.Tensor, mesh: DeviceMesh, stretches: int) -> torch.Tensor:
    """Return a share of output features as a DTensor that knows the whole; each stretch is divided."""
    shape = (*y.shape[:-1], y.shape[-1] * mesh.size())
    last = y.ndim - 1
    placement = Shard(last) if stretches == 1 else _StridedShard(last, split_factor=stretches)
    known: torch.Tensor = differentiated_once(
        DTensor.from_local(
            y,
            mesh,
            [placement],
            run_check=False,
            shape=torch.Size(shape),
            stride=torch.empty(shape, device="meta").stride(),
        )
    )
    return known


def own_share(x: torch.Tensor) -> torch.Tensor:
    """Return this rank's plain share of the last dimension of a DTensor."""
    if not isinstance(x, DTensor):
        return x
    own: torch.Tensor = x.redistribute(placements=[Shard(x.ndim - 1)]).to_local()
    return own


#: how attention may be divided: not at all, by samples, by heads
_KEPT = (Replicate(), Shard(0), Shard(1))
#: the permission, while it is given
_allowed: list[AbstractContextManager[None]] = []


def know_plain_tensors() -> None:
    """Let DTensors meet plain tensors, which are whole, from here on: masks, angles, constants.

    Backward meets them as well, so that a block around the forward would not do.
    """
    _teach_attention()
    if not _allowed:
        _allowed.append(implicit_replication())
        _allowed[0].__enter__()


def plain_tensors_known() -> bool:
    """Return whether DTensors may meet plain tensors now."""
    return bool(_allowed)


def forget_plain_tensors() -> None:
    """Take the permission back: no layout in use needs it."""
    if _allowed:
        _allowed.pop().__exit__(None, None, None)


@cache
def _teach_attention() -> None:
    """Say how the attention of CPUs is divided: by samples or heads; torch knows those of GPUs."""
    aten: Any = torch.ops.aten

    def forward(*_args: Any, **options: Any) -> list[Any]:
        return [_attention_rule(each, 2, 3, 2, options.get("attn_mask")) for each in _KEPT]

    def backward(*_args: Any, **options: Any) -> list[Any]:
        return [_attention_rule(each, 3, 6, 2, options.get("attn_mask")) for each in _KEPT]

    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu.default)(forward)  # noqa: SLF001
    register_sharding(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)(backward)  # noqa: SLF001


def _attention_rule(placement: Any, outputs: int, inputs: int, numbers: int, mask: Any) -> tuple[Any, Any]:
    given = [placement] * inputs + [None] * numbers
    if mask is not None:
        given.append(_of_mask(placement, mask))
    return [placement] * outputs, given


def _of_mask(placement: Any, mask: Any) -> Any:
    """A mask is divided where it has as many samples or heads; one element serves all."""
    if not isinstance(placement, Shard):
        return placement
    dim = placement.dim - 4 + len(mask.shape)
    return Shard(dim) if dim >= 0 and mask.shape[dim] != 1 else Replicate()
