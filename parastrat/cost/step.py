"""Seconds of one optimizer step on the slowest pipeline rank, in parts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.cost.communication import Group, all_reduce_s, all_to_all_s, fabric_of, ring_s, send_s
from parastrat.cost.compute import block_times
from parastrat.cost.data_parallel import data_parallel_s, fsdp_unit_s
from parastrat.estimate import TimeEstimate
from parastrat.hardware import FigureKind
from parastrat.plan import Offload, Shard
from parastrat.stages import RankLoad, rank_columns
from parastrat.states import block_totals, element_bytes, updated_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.cost.communication import Fabric
    from parastrat.model import Block
    from parastrat.units import Seconds

PARTS = (
    "compute",
    "tp_exposed",
    "cp_exposed",
    "ep_exposed",
    "dp_exposed",
    "pp_bubble",
    "pp_exposed",
    "optimizer",
)

#: figures of a device on which a step's time rests
_RATE_FIELDS = ("sustained", "memory_bytes_per_s", "matmul", "launch_s")

#: ln of the factor by which a step may be off when a rate is assumed: that is known to a factor of two
_ASSUMED_SPREAD = math.log(2)


def time_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``TimeEstimate`` for every row, seconds; plan columns are equal-length arrays."""
    fabric = fabric_of(facts) if facts.hardware.world_size > 1 else None
    of_blocks = [_block_parts(facts, block, columns, fabric) for block in facts.model.blocks]
    out = {part: np.zeros(len(columns.pp)) for part in PARTS}
    for load in rank_columns(facts.model, columns):
        out = _slower(out, _rank_step(facts, columns, load, of_blocks, fabric))
    step = sum(out[part] for part in PARTS)
    spread = time_spread(facts)
    return {**out, "step": step, "step_low": step * math.exp(-spread), "step_high": step * math.exp(spread)}


def time_estimate(time: Mapping[str, Any], row: int) -> TimeEstimate:
    """Return one row of ``time_columns`` as a value."""
    names = (*PARTS, "step_low", "step_high")
    return TimeEstimate(**{name: float(time[name][row]) for name in names})


def time_spread(facts: Facts) -> float:
    """Return the ln of the factor within which 80 % of measured steps lie.

    The stack's own spread; wider where a rate of the device is assumed, not measured or derived.
    """
    assumed = any(
        entry.kind is FigureKind.ASSUMED and entry.field.split(".")[0] in _RATE_FIELDS
        for entry in facts.hardware.device.provenance
    )
    return math.hypot(facts.stack.time_spread, _ASSUMED_SPREAD if assumed else 0.0)


def _slower(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    slower = sum(other[part] for part in PARTS) > sum(one[part] for part in PARTS)
    return {part: np.where(slower, other[part], one[part]) for part in PARTS}


def _block_parts(facts: Facts, block: Block, c: Columns, fabric: Fabric | None) -> dict[str, Seconds]:
    """Return the seconds of one repeat for one micro-batch, forward and backward."""
    times = block_times(facts, block, c)
    zero = np.zeros(len(c.pp))
    parts = {
        "compute": times.forward + times.backward + times.recomputed(c) + zero,
        "backward": times.backward + zero,
        "tp_exposed": zero,
        "cp_exposed": zero,
        "ep_exposed": zero,
        "fsdp": zero,
    }
    if fabric is None:
        return parts
    samples = c.micro_batch_size / c.cp
    tensor = all_reduce_s(block.tensor_parallel_bytes * samples, Group(ranks=c.tp, stride=1), fabric)
    shown = 1 - np.where(c.async_tp, facts.stack.tp_overlap, 0.0)
    parts["tp_exposed"] = 2 * block.tensor_parallel_collectives * tensor * shown
    gathered = block.context_parallel_bytes * c.micro_batch_size / c.tp
    # forward gathers keys and values; backward gathers them again and reduce-scatters their gradients
    parts["cp_exposed"] = 3 * ring_s(gathered, Group(ranks=c.cp, stride=c.tp), fabric) * (gathered > 0)
    # ranks of one tp group send a share of the tokens each, as the experts' compute has it
    sent = block.expert_parallel_bytes * samples / c.tp
    routed = all_to_all_s(sent, Group(ranks=c.ep, stride=1), fabric)
    # dispatch and combine, each forward and backward
    parts["ep_exposed"] = 4 * routed * (block.expert_parallel_bytes > 0)
    if block.unit:
        parts["fsdp"] = fsdp_unit_s(facts, c, block_totals(block), fabric)
    return parts


def _rank_step(
    facts: Facts,
    c: Columns,
    load: RankLoad,
    of_blocks: list[dict[str, Seconds]],
    fabric: Fabric | None,
) -> dict[str, Any]:
    """Return the parts of the step if this pipeline rank is the slowest."""
    steps = c.gradient_accumulation_steps
    one: dict[str, Any] = {
        part: sum(parts[part] * count for parts, count in zip(of_blocks, load.repeats, strict=True))
        for part in ("compute", "backward", "tp_exposed", "cp_exposed", "ep_exposed", "fsdp")
    }
    micro_batch = one["compute"] + one["tp_exposed"] + one["cp_exposed"] + one["ep_exposed"]
    dp = data_parallel_s(facts, c, load, fabric, one["fsdp"]) if fabric else {}
    zero = np.zeros(len(c.pp))
    hidden = zero
    if dp:
        beside = np.where(c.shard == code_of(Shard.PARAMETERS), steps * one["compute"], one["backward"])
        hidden = dp["overlap"] * np.minimum(dp["total"], beside)
    return {
        "compute": steps * one["compute"] + facts.stack.step_constant_s,
        "tp_exposed": steps * one["tp_exposed"] + zero,
        "cp_exposed": steps * one["cp_exposed"] + zero,
        "ep_exposed": steps * one["ep_exposed"] + zero,
        "dp_exposed": dp.get("total", zero) - hidden,
        "pp_bubble": (c.pp - 1) / c.virtual_stages * micro_batch,
        "pp_exposed": _pipeline_sends(facts, c, fabric) if fabric else zero,
        "optimizer": _optimizer_s(facts, c, load),
    }


def _pipeline_sends(facts: Facts, c: Columns, fabric: Fabric) -> Seconds:
    """Return the exposed activations' and gradients' transfers of one rank over a step."""
    boundary = max(block.boundary_bytes for block in facts.model.blocks)
    sequence = np.where(c.sequence_parallel, c.tp, 1)
    payload = boundary * c.micro_batch_size / (c.cp * sequence)
    one = send_s(payload, c.dp * c.cp * c.tp, fabric)
    count = 2 * c.gradient_accumulation_steps * c.virtual_stages
    return np.where(c.pp > 1, (1 - facts.stack.pp_overlap) * count * one, 0.0)


def _optimizer_s(facts: Facts, c: Columns, load: RankLoad) -> Seconds:
    """Return the optimizer's memory traffic: gradients read, weights and states read and written.

    Offloaded states stay on the host: gradients go down and weights come up through the host link.
    """
    element, device = element_bytes(facts), facts.hardware.device
    updated = updated_parameters(load, c)
    moved = element.gradient + 2 * (element.parameter + element.optimizer)
    seconds = updated * moved * facts.stack.elementwise_factor / device.memory_bytes_per_s
    link = device.host_bytes_per_s or device.memory_bytes_per_s
    offloaded = updated * (element.gradient + element.parameter) / link
    return seconds + np.where(c.offload == code_of(Offload.NONE), 0.0, offloaded)
