"""Parameters that several stages hold: their gradients are summed, and they count once."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from parastrat.runtime.communication.messages import average_gradients
from parastrat.runtime.tensors.shares import share_of
from parastrat.runtime.tensors.slots import slots_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.runtime.communication.mesh import RankMesh


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tie:
    """One parameter that this rank shares with other ranks of its pipeline."""

    parameter: nn.Parameter
    group: dist.ProcessGroup
    #: this rank is the first of those that hold it
    counts: bool


def tied(
    module: nn.Module, holders: Mapping[str, tuple[int, ...]], whole: DeviceMesh, pp: DeviceMesh
) -> list[Tie]:
    """Return the parameters that this rank shares; all ranks of the world call it.

    Args:
        module: this rank's part.
        holders: pipeline ranks, in order, by the name of each parameter.
        whole: all ranks; ``pp`` is its first axis.
        pp: this rank's pipeline.
    """
    shared = {name: ranks for name, ranks in sorted(holders.items()) if len(ranks) > 1}
    groups = {ranks: _group(ranks, whole, pp) for ranks in sorted(set(shared.values()))}
    here = pp.get_local_rank()
    own = {slot.name: slot.tensor for slot in slots_of(module)}
    ties = []
    for name, ranks in shared.items():
        group, parameter = groups[ranks], own.get(name)
        if here in ranks and group is not None and isinstance(parameter, nn.Parameter):
            ties.append(Tie(parameter=parameter, group=group, counts=here == ranks[0]))
    return ties


def equalise(ties: list[Tie]) -> None:
    """Give all ranks the first one's values."""
    for tie in ties:
        values = share_of(tie.parameter.detach()).contiguous()
        dist.broadcast(values, group_src=0, group=tie.group)
        share_of(tie.parameter.detach()).copy_(values)


@contextmanager
def gradients_added(ties: list[Tie]) -> Iterator[None]:
    """Sum the gradients of the backwards inside over the ranks that hold a parameter; earlier ones stay."""
    trained = [tie for tie in ties if tie.parameter.requires_grad]
    earlier = [tie.parameter.grad for tie in trained]
    for tie in trained:
        tie.parameter.grad = None
    yield
    for tie, before in zip(trained, earlier, strict=True):
        new = torch.zeros_like(tie.parameter) if tie.parameter.grad is None else tie.parameter.grad
        dist.all_reduce(share_of(new), group=tie.group)
        tie.parameter.grad = new if before is None else before.add_(new)


def average_over_data(modules: Iterable[nn.Module], mesh: RankMesh) -> None:
    """Average all gradients over the ranks that see different samples.

    What no rank has a gradient for stays without one.
    """
    if mesh.data_group is None:
        return
    every = dict.fromkeys(parameter for module in modules for parameter in module.parameters())
    average_gradients(every, mesh.data_group)


def _group(ranks: tuple[int, ...], whole: DeviceMesh, pp: DeviceMesh) -> dist.ProcessGroup | None:
    """Return the group of these ranks of this pipeline; every rank makes the groups of all pipelines."""
    if len(ranks) == pp.size():
        return pp.get_group()
    found = None
    for pipeline in whole.mesh.reshape(pp.size(), -1).T.tolist():
        members = [pipeline[rank] for rank in ranks]
        group = dist.new_group(members)
        if dist.get_rank() in members:
            found = group
    return found
