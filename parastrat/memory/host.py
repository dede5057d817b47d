"""What the processes of a job take of their host's own memory.

Assumed, where nobody says: weights are loaded tensor by tensor (a mapped file of ``torch.save``, or
``torch.distributed.checkpoint``, which fills what is there), modules are built on the meta device, and
checkpoints are written by ``torch.distributed.checkpoint.save``, which copies some megabytes ahead of the
file. All ranks of a host count as the fullest. Data loaders, the page cache and the launcher are left out.

Sources: docs.pytorch.org/docs/stable/distributed.checkpoint.html (in place; ``per_thread_copy_ahead``);
docs.pytorch.org/tutorials/recipes/distributed_async_checkpoint_recipe.html (a staged copy on every rank);
docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (``CPUOffloadPolicy`` pins parameters and
gradients); github.com/pytorch/pytorch/issues/95823 (pinned memory is rounded up to powers of two).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.elementwise import smaller, some
from parastrat.hardware import DeviceType
from parastrat.model import Split
from parastrat.plan import Offload, Shard
from parastrat.ranks import mean_ranks, rank_columns
from parastrat.ranks.division import division
from parastrat.ranks.matrices import muon_matrices
from parastrat.ranks.states import element_bytes, of_elements, state_bytes
from parastrat.tables import facts_columns, plan_columns

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.case import Facts
    from parastrat.plan import Plan
    from parastrat.ranks.load import RankLoad
    from parastrat.ranks.states import States

#: bytes that ``torch.distributed.checkpoint`` copies ahead of the file (``per_thread_copy_ahead``)
_COPY_AHEAD = 10_000_000
_NOWHERE = code_of(Offload.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """The memory of one host, bytes of all its processes together."""

    #: processes of the job on the host
    ranks: int
    #: interpreter, libraries, and the host's side of the device's context
    processes: int
    #: states that live on the host because the plan offloads them
    offloaded: int
    #: at most, what rounding pinned buffers up to powers of two adds to them
    rounding: int
    #: at most, while weights are loaded tensor by tensor
    loading: int
    #: at most, while a checkpoint is written
    checkpointing: int
    #: more, where every process builds or loads the whole model in its host's memory
    whole_models: int
    #: more, where checkpoints are staged for ``async_save``
    staged_checkpoint: int
    #: None: unknown
    capacity: int | None

    @property
    def least(self) -> int:
        """What no way of loading or saving avoids."""
        return self.processes + self.offloaded

    @property
    def total(self) -> int:
        """The peak under the assumptions; loading and saving are never at once."""
        return self.least + self.rounding + max(self.loading, self.checkpointing)


def host_memory(facts: Facts, plan: Plan) -> HostMemory | None:
    """Return what a plan takes of each host; None where the device's memory is the host's."""
    hardware = facts.hardware
    if hardware.device.type is DeviceType.CPU:
        return None
    ranks = min(plan.mesh.world_size, hardware.devices_per_node)
    of_plan = {name: np.array([value]) for name, value in plan_columns(plan).items()}
    kept, on_host = (
        {name: float(part[0]) for name, part in states.items()}
        for states in _on_host(facts, Columns({**facts_columns(facts), **of_plan}))
    )
    pinned = on_host["parameters"] + on_host["gradients"]
    element, shards = element_bytes(facts), 1
    if plan.shard is Shard.PARAMETERS:
        shards = plan.mesh.dp_shard * plan.mesh.cp
    saved = element.parameter * _largest_group(facts, plan.mesh.tp) / shards + _COPY_AHEAD
    return HostMemory(
        ranks=ranks,
        processes=processes_bytes(facts, plan),
        offloaded=ceil(ranks * sum(on_host.values())),
        rounding=ceil(ranks * pinned),
        loading=ceil(ranks * element.parameter * _largest_group(facts, 1)),
        checkpointing=ceil(ranks * saved),
        whole_models=whole_models_bytes(facts, plan),
        staged_checkpoint=ceil(ranks * (kept["parameters"] + kept["optimizer"])),
        capacity=hardware.host.memory_bytes,
    )


def processes_bytes(facts: Facts, plan: Plan) -> int:
    """Return what the processes of a host take before there is a model."""
    return min(plan.mesh.world_size, facts.hardware.devices_per_node) * facts.stack.host_process_bytes


def whole_models_bytes(facts: Facts, plan: Plan) -> int:
    """Return what it takes that every process of a host has the whole model."""
    ranks = min(plan.mesh.world_size, facts.hardware.devices_per_node)
    return ceil(ranks * (element_bytes(facts).parameter * facts.model.parameters + facts.model.buffers))


def host_of(facts: Facts, plan: Plan) -> dict[str, int]:
    """Return what ``host_columns`` does of one plan, in whole bytes."""
    capacity = _limit(facts)
    if capacity is None:
        return {}
    found = None if plan.offload is Offload.NONE else host_memory(facts, plan)
    needed = processes_bytes(facts, plan) if found is None else found.least
    return {"host_needed": needed, "host_capacity": capacity}


def host_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return ``least`` of ``HostMemory`` for every row, beside what a host has, as rules read both.

    Nothing where the device's memory is the host's, or where that is unknown.
    """
    return _columns_of(facts, columns, lambda: sum(_on_host(facts, columns)[1].values()))


def host_floors(facts: Facts, meshes: Columns) -> dict[str, Any]:
    """Return what ``host_columns`` does of meshes, or less, whatever their micro-batch and schedule.

    That is of ranks with the mean load: the fullest one has as much or more.
    """

    def moved() -> Any:
        everything, here = _states(facts, meshes, mean_ranks(facts.model, meshes))
        return everything.kept - here.kept

    return _columns_of(facts, meshes, moved)


def _columns_of(facts: Facts, columns: Columns, offloaded: Callable[[], Any]) -> dict[str, Any]:
    """Return what hosts need where their ranks have so many bytes offloaded each, if any have."""
    capacity = _limit(facts)
    if capacity is None:
        return {}
    ranks = smaller(columns.world_size, facts.hardware.devices_per_node)
    needed = ranks * facts.stack.host_process_bytes
    if some(columns.offload != _NOWHERE):
        needed = needed + ranks * offloaded()
    return {"host_needed": needed, "host_capacity": capacity}


def _limit(facts: Facts) -> int | None:
    hardware = facts.hardware
    return None if hardware.device.type is DeviceType.CPU else hardware.host.memory_bytes


def _on_host(facts: Facts, c: Columns) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return for every row the states of the fullest rank, and those of them that its host has."""
    names = ("parameters", "gradients", "optimizer")
    kept, held = (
        {name: np.max(getattr(states, name), axis=0) for name in names}
        for states in _states(facts, c, rank_columns(facts.model, c))
    )
    return kept, {name: kept[name] - held[name] for name in names}


def _states(facts: Facts, c: Columns, load: RankLoad) -> tuple[States, States]:
    """Return the states of some ranks of every row as if nothing were offloaded, and those that stay."""
    element, d, matrices = element_bytes(facts), division(c), muon_matrices(facts)
    everything, here = (
        state_bytes(load, d, c.shard, of_elements(offload, element), matrices)
        for offload in (_NOWHERE, c.offload)
    )
    return everything, here


def _largest_group(facts: Facts, tp: int) -> float:
    """Return the parameters of a block that are treated alike, which no tensor on a rank exceeds."""
    groups = (group for block in facts.model.blocks for group in block.parameters)
    divided = {Split.TENSOR}
    if facts.stack.pads_vocabulary or (facts.model.vocab or tp) % tp == 0:
        divided.add(Split.VOCABULARY)
    return max((group.count / (tp if group.split in divided else 1) for group in groups), default=0)
