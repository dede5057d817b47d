"""Numbers that a script reads of divided tensors, by ``item()``, ``float()`` or ``if``: those of the whole.

What a reduction makes of a DTensor is a part of the result on each rank, to be added up or compared when
somebody needs it, and torch's DTensor (2.11 to 2.13) hands out that part as if it were the result: a norm
that is summed up by ``item()`` would clip each rank by another, and ``isfinite().all()`` be true on one and
false on the next. So what is read is reduced before. All ranks have to read it then; where one does so
alone, as it logs something, it waits in vain and stops with a message. It waits in groups that nothing else
uses: the others' next collective must not be taken for its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from parastrat.errors import MismatchError
from parastrat.runtime.communication.gloo import group_apart

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.runtime.wrapping import Wrapping

#: what ranks may be apart where they read the same number
WAIT = timedelta(minutes=3)

_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001  (torch's name of what reads a value)

#: what torch's detection of anomalies asks of every gradient
_IS_ANY = torch.ops.aten._is_any_true.default  # noqa: SLF001  (torch's name of it)

#: by the default group, the groups in which the ranks of a mesh read
_known: WeakKeyDictionary[dist.ProcessGroup, dict[DeviceMesh, DeviceMesh]] = WeakKeyDictionary()


def read_whole(wrapping: Wrapping) -> None:
    """Let values that are read of DTensors be those of the whole, if a wrapped model has such."""
    if wrapping.plan.shards_parameters or wrapping.plan.mesh.tp > 1:
        dispatcher: Any = DTensor._op_dispatcher  # noqa: SLF001  (no public way: values are no tensors)
        dispatcher._custom_op_handlers[_READ] = _read  # noqa: SLF001  (as above)
        dispatcher._custom_op_handlers[_IS_ANY] = _of_own  # noqa: SLF001  (as above)


def _read(operator: Callable[..., Any], args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    divided: DTensor = args[0]
    own = divided.to_local()
    in_parts = [place for place, each in enumerate(divided.placements) if each.is_partial()]
    if in_parts and dist.get_backend(divided.device_mesh.get_group(in_parts[0])) != "fake":
        own = _reduced(divided, own)
    return operator(own)


def _of_own(operator: Callable[..., Any], args: tuple[Any, ...], _kwargs: dict[str, Any]) -> torch.Tensor:
    """Answer for this rank's part: where another's is not a number, that one stops, and all with it."""
    own: torch.Tensor = operator(args[0].to_local())
    return own


def _reduced(divided: DTensor, own: torch.Tensor) -> torch.Tensor:
    """Return the whole value of what ranks have parts of.

    Raises:
        MismatchError: where the others do not read it.
    """
    mesh = divided.device_mesh
    # the device's collectives are over then: the others are not far behind
    value = own.detach().cpu()
    try:
        apart = _apart(mesh)
        return DTensor.from_local(value, apart, divided.placements, run_check=False).full_tensor()
    except RuntimeError as error:
        if "imed out" not in str(error) and "timeout" not in str(error).lower():
            raise
        raise MismatchError(
            f"rank {dist.get_rank()} reads a number of a tensor that is divided over the ranks of "
            f"{mesh.mesh_dim_names}, and others did not within {WAIT.total_seconds():g} seconds",
            hint="read it on all ranks, outside of `if rank == 0`, and print it on one",
        ) from error


def _apart(mesh: DeviceMesh) -> DeviceMesh:
    """Return a mesh of the same ranks over groups of its own, made as its ranks first read."""
    world = dist.group.WORLD
    known = {} if world is None else _known.setdefault(world, {})
    if mesh not in known:
        groups = [
            # the ranks of other stages do not come to it
            group_apart(dist.get_process_group_ranks(mesh.get_group(place)), WAIT)
            for place in range(mesh.ndim)
        ]
        names = mesh.mesh_dim_names
        known[mesh] = DeviceMesh.from_group(groups, "cpu", mesh=mesh.mesh, mesh_dim_names=names)
    return known[mesh]
