"""The ranks of a plan, laid out by axis: one mesh, its parts, and the collectives over its data ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from parastrat.runtime.communication.flow import exchange_over
from parastrat.runtime.communication.gloo import flat, mesh_of_dtensors, overlapping_group

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from parastrat.plan import Mesh, Plan

#: the axis along which ranks have other samples, or other positions of a sample, and shard parameters
_SHARDS = "dp_shard_cp"
#: axes along which ranks hold copies or shards of the same parameters, and average their gradients
_DATA_AXES = ("dp_replicate", "dp_shard", _SHARDS)
#: axes along which parameters are divided
_DIVIDING_AXES = ("dp_shard", _SHARDS, "tp")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankMesh:
    """A plan's mesh of the axes that split something. Every part is None where its axes split nothing."""

    whole: DeviceMesh | None = None
    #: over the axes along which gradients are averaged
    data: DeviceMesh | None = None
    #: all of its ranks: those that see different samples of one model, or positions of them
    gradient_group: dist.ProcessGroup | None = None
    #: all ranks that see different samples of one model
    data_group: dist.ProcessGroup | None = None
    #: all ranks that hold parts of the same parameters: the world but for pipelines
    stage_group: dist.ProcessGroup | None = None
    #: of the ranks that have the positions of one sample
    cp: DeviceMesh | None = None
    tp: DeviceMesh | None = None
    #: of the ranks that compute one sample together, along one axis: those of cp, of tp, or of both
    sample: DeviceMesh | None = None
    pp: DeviceMesh | None = None
    #: of the ranks that hold one set of experts together
    ep: DeviceMesh | None = None
    #: of these, the ones that see other samples, or positions of them, where tp ranks are among them
    ep_samples: DeviceMesh | None = None
    #: of the ranks of one tp group that hold the same experts
    ep_copies: DeviceMesh | None = None
    #: over the axes along which gradients of the same experts are averaged
    expert_data: DeviceMesh | None = None

    @property
    def dp_rank(self) -> int:
        """This rank's place among those that see different samples."""
        return 0 if self.data_group is None else dist.get_rank(self.data_group)

    def sum_over_data(self, tensor: torch.Tensor) -> None:
        """All-reduce a tensor in place over the ranks that see different samples."""
        if self.data_group is not None:
            dist.all_reduce(tensor, group=self.data_group)

    def sum_over_copies(self, tensor: torch.Tensor) -> None:
        """All-reduce a tensor in place over the ranks that average gradients."""
        if self.gradient_group is not None:
            dist.all_reduce(tensor, group=self.gradient_group)

    def from_first(self, tensor: torch.Tensor) -> None:
        """Overwrite a tensor with that of the first rank which holds parts of the same parameters."""
        if self.stage_group is not None:
            dist.broadcast(tensor, group_src=0, group=self.stage_group)


def rank_mesh(plan: Plan, device: torch.device, calls: list[str]) -> RankMesh:
    """Lay the ranks out by the plan's axes; all ranks call it."""
    used = _axes(plan.mesh)
    if not used:
        return RankMesh()
    shape, names = tuple(used.values()), tuple(used)
    calls.append(f"mesh = init_device_mesh({device.type!r}, {shape}, mesh_dim_names={names})")
    divided = tuple(axis for axis in _DIVIDING_AXES if axis in used)
    whole = _with_whole(mesh_of_dtensors(device.type, shape, names, divided), divided)
    axes = tuple(axis for axis in _DATA_AXES if axis in used)
    within = tuple(axis for axis in names if axis != "pp")
    gradient_group = _group(whole, axes)
    tp = _tp_part(whole) if "tp" in used else None
    samples, cp, sample = gradient_group, None, tp
    if plan.mesh.cp > 1:
        context = _context(plan, device, calls)
        parts = context.mesh_dim_names or ()
        samples = context["data"].get_group() if "data" in parts else None
        cp, sample = context["cp"], flat(context["cp", "tp"] if tp is not None else context["cp"])
    experts = _experts(plan, device, calls) if plan.mesh.ep > 1 else None
    return RankMesh(
        whole=whole,
        data=_part(whole, axes),
        gradient_group=gradient_group,
        data_group=samples,
        stage_group=_group(whole, within),
        cp=cp,
        tp=tp,
        sample=sample,
        pp=whole["pp"] if "pp" in used else None,
        ep=None if experts is None else experts["ep"],
        ep_samples=_across(plan, device, plan.mesh.ep, plan.mesh.tp),
        ep_copies=_across(plan, device, plan.mesh.tp, plan.mesh.ep),
        expert_data=None if experts is None else _data_of(experts),
    )


def _axes(mesh: Mesh) -> dict[str, int]:
    """Return the degrees of the mesh's dimensions, outermost first: neighbours share fast links."""
    shards = _SHARDS if mesh.cp > 1 else "dp_shard"
    degrees = {
        "pp": mesh.pp,
        "dp_replicate": mesh.dp_replicate,
        shards: mesh.dp_shard * mesh.cp,
        "tp": mesh.tp,
    }
    return {axis: degree for axis, degree in degrees.items() if degree > 1}


def _with_whole(mesh: DeviceMesh, divided: tuple[str, ...]) -> DeviceMesh:
    """Return a mesh that knows itself as one axis, where what it divides is divided along all of its axes.

    Norms are summed over all ranks at once then. Over some of them a group of their own would be needed,
    which takes memory on each.
    """
    if len(divided) > 1 and divided == mesh.mesh_dim_names:
        flat(mesh)
    return mesh


def _context(plan: Plan, device: torch.device, calls: list[str]) -> DeviceMesh:
    """Return the mesh of stages, and of ranks with different samples, one's positions, and its layers.

    It is one of its own: parameters are sharded over the ranks of the first two as if each had other
    samples.
    """
    degrees = {"pp": plan.mesh.pp, "data": plan.mesh.dp, "cp": plan.mesh.cp, "tp": plan.mesh.tp}
    used = {axis: degree for axis, degree in degrees.items() if degree > 1}
    shape, names = tuple(used.values()), tuple(used)
    calls.append(f"context = init_device_mesh({device.type!r}, {shape}, mesh_dim_names={names})")
    return mesh_of_dtensors(device.type, shape, names, ())


def _experts(plan: Plan, device: torch.device, calls: list[str]) -> DeviceMesh:
    """Return the mesh of experts: ranks that share one set of them are neighbours.

    It is one of its own. What one of a set holds is sharded over those that hold the same. Ranks of tp,
    which divide no expert, hold different ones.
    """
    mesh = plan.mesh
    apart = {"pp": mesh.pp, "dp_replicate": mesh.dp_replicate}
    used = {axis: degree for axis, degree in apart.items() if degree > 1}
    used |= {"dp_shard_mod_ep": mesh.dp_shard * mesh.cp * mesh.tp // mesh.ep, "ep": mesh.ep}
    shape, names = tuple(used.values()), tuple(used)
    calls.append(f"experts = init_device_mesh({device.type!r}, {shape}, mesh_dim_names={names})")
    return _with_whole(mesh_of_dtensors(device.type, shape, names, names[-2:]), names[-2:])


def _data_of(experts: DeviceMesh) -> DeviceMesh:
    """Return the part of a mesh of experts whose ranks hold the same ones, of one stage."""
    names = experts.mesh_dim_names or ()
    return experts[tuple(axis for axis in names if axis not in ("pp", "ep"))]


def _across(plan: Plan, device: torch.device, larger: int, smaller: int) -> DeviceMesh | None:
    """Return the mesh of a rank and those with its place in the other groups of one larger group.

    Args:
        plan: whose ranks they are, of which neighbours are one group.
        device: on which they compute.
        larger: ranks of a larger group.
        smaller: ranks of each smaller group that it holds.
    """
    if smaller == 1 or larger <= smaller:
        return None
    shape = (plan.mesh.world_size // larger, larger // smaller, smaller)
    return mesh_of_dtensors(device.type, shape, ("apart", "across", "within"), ())["across"]


def _tp_part(whole: DeviceMesh) -> DeviceMesh:
    part = whole["tp"]
    overlapping = overlapping_group(whole, "tp")
    if overlapping is not None:
        exchange_over(overlapping, part)
    return part


def _part(whole: DeviceMesh, axes: tuple[str, ...]) -> DeviceMesh | None:
    if not axes:
        return None
    return whole if axes == whole.mesh_dim_names else whole[axes]


def _group(whole: DeviceMesh, axes: tuple[str, ...]) -> dist.ProcessGroup | None:
    """Return one group over several axes; a mesh has one group an axis."""
    part = _part(whole, axes)
    if part is None or part is whole:
        return None if part is None else dist.group.WORLD
    return flat(part).get_group()
