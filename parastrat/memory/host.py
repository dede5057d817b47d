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

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from parastrat.columns import Columns
from parastrat.hardware import DeviceType
from parastrat.model import Split
from parastrat.plan import Offload, Shard
from parastrat.ranks import rank_columns
from parastrat.ranks.division import division
from parastrat.ranks.states import element_bytes, of_elements, state_bytes
from parastrat.tables import facts_columns, plan_columns

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.plan import Plan

#: bytes that ``torch.distributed.checkpoint`` copies ahead of the file (``per_thread_copy_ahead``)
_COPY_AHEAD = 10_000_000


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
    def exceeded(self) -> bool:
        """Whether a host is known to have too little."""
        return self.capacity is not None and self.least > self.capacity

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
    kept, offloaded = _states(facts, replace(plan, offload=Offload.NONE)), _states(facts, plan)
    on_host = {name: kept[name] - offloaded[name] for name in kept}
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
    return ceil(ranks * element_bytes(facts).parameter * facts.model.parameters)


def _states(facts: Facts, plan: Plan) -> dict[str, float]:
    """Return the states that the fullest rank has on its device."""
    of_plan = {name: np.array([value]) for name, value in plan_columns(plan).items()}
    columns = Columns({**facts_columns(facts), **of_plan})
    load = rank_columns(facts.model, columns)
    states = state_bytes(
        load, division(columns), columns.shard, of_elements(columns.offload, element_bytes(facts))
    )
    named = ((name, getattr(states, name)) for name in ("parameters", "gradients", "optimizer"))
    return {name: float(np.max(part)) for name, part in named}


def _largest_group(facts: Facts, tp: int) -> float:
    """Return the parameters of a block that are treated alike, which no tensor on a rank exceeds."""
    groups = (group for block in facts.model.blocks for group in block.parameters)
    divided = {Split.TENSOR}
    if facts.stack.pads_vocabulary or (facts.model.vocab or tp) % tp == 0:
        divided.add(Split.VOCABULARY)
    return max((group.count / (tp if group.split in divided else 1) for group in groups), default=0)
