"""Random numbers that a script writes to divided weights on CPUs: those that one process would draw.

torch's DTensor lets each rank draw its share. On accelerators it moves their generators apart for that,
and together again; on CPUs it does not (torch 2.13): ranks of one seed give all shares the same numbers,
so that a weight which is initialised again has the rows of one rank several times over, and they stay alike
as they are trained. So each rank draws for the whole, and keeps its share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from parastrat.runtime.tensors.shares import share_of_whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.wrapping import Wrapping

_ATEN = torch.ops.aten
#: all of which torch knows for DTensors, but for those of dropout
_WRITTEN: tuple[Any, ...] = (_ATEN.normal_.default, _ATEN.uniform_.default, _ATEN.bernoulli_.float)
_MADE: tuple[Any, ...] = (
    _ATEN.rand_like.default,
    _ATEN.randn_like.default,
    _ATEN.randint_like.default,
    _ATEN.randint_like.low_dtype,
)


def draw_whole(wrapping: Wrapping) -> None:
    """Let what is drawn for DTensors be drawn for the whole, if a wrapped model has such on CPUs."""
    plan = wrapping.plan
    if wrapping.device.type != "cpu" or not (plan.shards_parameters or plan.mesh.tp > 1):
        return
    dispatcher: Any = DTensor._op_dispatcher  # noqa: SLF001  (no public way: torch draws in it)
    dispatcher._custom_op_handlers.update(dict.fromkeys(_WRITTEN, _write) | dict.fromkeys(_MADE, _make))  # noqa: SLF001  (as above)


def _write(operator: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    divided: DTensor = args[0]
    own = divided._local_tensor  # noqa: SLF001  (whatever hooks)
    drawn = operator(torch.empty(divided.shape, dtype=own.dtype, device=own.device), *args[1:], **keywords)
    own.copy_(share_of_whole(drawn, divided))
    return divided


def _make(operator: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    divided: DTensor = args[0]
    own = divided._local_tensor  # noqa: SLF001  (as above)
    like = torch.empty(divided.shape, dtype=own.dtype, device=own.device)
    share = share_of_whole(operator(like, *args[1:], **keywords), divided)
    # what others would add theirs to is whole on each rank
    placements = [Replicate() if each.is_partial() else each for each in divided.placements]
    return DTensor.from_local(
        share.clone(),
        divided.device_mesh,
        placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
