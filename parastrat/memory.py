"""Peak memory of the worst rank, from the blocks of a model.

Memory is followed through the moments of a step at which it can peak: the start of the backward of each
kind of block, and the optimizer step. Everything is exact for parameters, gradients and optimizer states;
activations are what the blocks say that backward reads.

Sources: FSDP2's gathering and resharding, https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html;
micro-batches in flight, Narayanan et al., arXiv:2104.04473, section 2.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import Columns, code_of
from parastrat.estimate import MemoryEstimate
from parastrat.model import Saved
from parastrat.plan import Offload, PipelineSchedule, Recompute, Shard
from parastrat.stages import ParameterTotals, RankLoad, pipeline_ranks
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from parastrat.case import Facts
    from parastrat.model import Block, ModelSpec
    from parastrat.units import Bytes, Numbers

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")

#: bytes of one fp32 element, in which torch reduces gradients and takes optimizer steps
_FP32 = 4


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    rows = len(columns.pp)
    out = {part: np.zeros(rows) for part in PARTS}
    kept = [kept_bytes(block, columns) for block in facts.model.blocks]
    running = [_running(block, own, columns) for block, own in zip(facts.model.blocks, kept, strict=True)]
    for (pp, virtual_stages), chosen, some in pipeline_groups(columns):
        worst: dict[str, Any] | None = None
        blocks = [(own[chosen], run[chosen]) for own, run in zip(kept, running, strict=True)]
        for load in pipeline_ranks(facts.model, pp, virtual_stages):
            worst = _larger(worst, _rank_peak(facts, some, load, blocks))
        for part in PARTS:
            out[part][chosen] = worst[part] if worst else 0
    parts = {part: np.ceil(out[part]).astype(np.int64) for part in PARTS}
    total = sum(parts.values())
    capacity = facts.hardware.device.usable_memory_bytes
    margin = np.minimum(facts.stack.memory_margin * total, 0.08 * capacity).astype(np.int64)
    return {**parts, "margin": margin, "capacity": capacity, "total": total}


def memory_estimate(memory: Mapping[str, Any], row: int) -> MemoryEstimate:
    """Return one row of ``memory_columns`` as a value."""
    return MemoryEstimate(
        **{part: int(memory[part][row]) for part in PARTS},
        capacity=int(memory["capacity"]),
        margin=int(memory["margin"][row]),
    )


def pipeline_groups(columns: Columns) -> Iterator[tuple[tuple[int, int], Any, Columns]]:
    """Yield (pp, virtual stages), the rows that have them, and those rows' columns."""
    key = columns.pp * 10_000 + columns.virtual_stages
    for value in np.unique(key):
        chosen = np.flatnonzero(key == value)
        yield divmod(int(value), 10_000), chosen, columns.at(chosen)


def _larger(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Return, row by row, the composition with the larger total."""
    if one is None:
        return other
    larger = sum(other[part] for part in PARTS) > sum(one[part] for part in PARTS)
    return {part: np.where(larger, other[part], one[part]) for part in PARTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementBytes:
    """Bytes of one parameter's element in each place, under one stack and precision."""

    #: the weights that the optimizer updates
    parameter: float
    gradient: float
    #: states and fp32 masters
    optimizer: float
    #: as matrix multiplies read it
    compute: float
    #: as gradients are reduced
    reduce: float
    #: temporaries of a foreach optimizer step
    step: float
    #: short-format copies that autocast keeps until backward, where the weights are not gathered anyway
    cast: float


def element_bytes(facts: Facts) -> ElementBytes:
    """Return the bytes of an element for a job.

    AdamW keeps two states in the weights' format; 8-bit AdamW two bytes and one fp32 scale per 256
    elements each (bitsandbytes' block size); Adafactor one row and one column of a square matrix of the
    model's width (arXiv:1804.04235); Muon one momentum.
    """
    precision, stack = facts.workload.precision, facts.stack
    mixed = precision not in (Precision.FP32, Precision.BF16)
    parameter = stack.mixed_parameter_bytes if mixed else precision.parameter_bytes
    states = {
        Optimizer.ADAMW: 2 * (_FP32 if mixed else parameter),
        Optimizer.SGD: 0,
        Optimizer.SGD_MOMENTUM: _FP32 if mixed else parameter,
        Optimizer.ADAFACTOR: 2 * _FP32 / (facts.model.hidden or 1024),
        Optimizer.ADAMW_8BIT: 2 * (1 + _FP32 / 256),
        Optimizer.MUON: _FP32 if mixed else parameter,
    }[facts.workload.optimizer]
    return ElementBytes(
        parameter=parameter,
        gradient=stack.mixed_gradient_bytes if mixed else parameter,
        optimizer=states + (stack.master_weight_bytes if mixed else 0),
        compute=precision.compute_bytes,
        reduce=_FP32 if mixed else parameter,
        step=_FP32 if facts.workload.optimizer is Optimizer.ADAMW else 0,
        cast=precision.compute_bytes if mixed and parameter == _FP32 else 0,
    )


def local(totals: ParameterTotals, c: Columns) -> tuple[Numbers, Numbers]:
    """Return the dense and the expert parameters that tp and ep leave on one rank."""
    divisor: Numbers = np.where(c.ep > 1, c.ep, c.tp)
    experts = totals.expert / divisor
    return totals.replicated + totals.tensor / c.tp, experts


def shard_ranks(c: Columns) -> tuple[Numbers, Numbers]:
    """Return over how many ranks dense and expert parameters are sharded, as torchtitan's meshes do."""
    dense = c.dp_shard * c.cp
    return dense, np.where(c.ep > 1, dense * c.tp / c.ep, dense)


def saved_bytes(saved: Saved, c: Columns) -> Bytes:
    """Return one micro-batch's bytes on one rank of activations given for one sample."""
    sequence = np.where(c.sequence_parallel, c.tp, 1)
    per_sample = saved.replicated + saved.tensor / c.tp + saved.sequence / sequence
    return per_sample * c.micro_batch_size / c.cp


def kept_bytes(block: Block, c: Columns) -> Bytes:
    """Return what one repeat of a block keeps for backward under each row's recompute policy."""
    kept = saved_bytes(block.activations.none, c)
    for policy in (Recompute.ATTENTION, Recompute.SELECTIVE, Recompute.FULL):
        chosen = c.recompute == code_of(policy)
        kept = np.where(chosen, saved_bytes(block.activations.under(policy), c), kept)
    return kept


def in_flight(c: Columns, rank: int) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak.

    GPipe and LoopedBFS hold all; 1F1B as many as there are ranks behind; interleaved chunks as in
    Megatron-LM's schedule; the V schedules about as many as there are ranks.
    """
    behind, schedule, steps = c.pp - rank, c.pp_schedule, c.gradient_accumulation_steps
    interleaved = (2 * (behind - 1) + (c.virtual_stages - 1) * c.pp + 1) / c.virtual_stages
    held = np.where(schedule == code_of(PipelineSchedule.ONE_F_ONE_B), behind, steps)
    for name in (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE):
        held = np.where(schedule == code_of(name), interleaved, held)
    for name in (PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V):
        held = np.where(schedule == code_of(name), c.pp, held)
    return np.where(c.pp > 1, np.minimum(held, steps), 1)


def _rank_peak(
    facts: Facts, c: Columns, load: RankLoad, blocks: list[tuple[Bytes, Bytes]]
) -> dict[str, Any]:
    """Return the composition at the peak of one pipeline rank.

    ``blocks`` gives for each block what one repeat keeps for backward and what exists while it runs.
    """
    element = element_bytes(facts)
    states = _states(load, c, element)
    kept = {index: blocks[index][0] for index, count in enumerate(load.repeats) if count}
    held = in_flight(c, load.rank) * sum(kept[index] * load.repeats[index] for index in kept)
    peak = _optimizer_step(facts, states, load, c, element)
    freed: Bytes = 0
    for moment_number, index in enumerate(reversed(kept)):
        transient = _gathered(facts.model, load, index, c, element) + blocks[index][1]
        dynamic = held - freed + transient
        # sharded gradients come with the first reduction: after the loss, under a pipeline at the end
        unreduced = (c.pp > 1) | ((moment_number == 0) & (c.gradient_accumulation_steps == 1))
        no_gradient_yet = unreduced & _shards_parameters(c)
        moment = {
            "parameters": states["parameters"],
            "gradients": np.where(no_gradient_yet, 0, states["gradients"]),
            "optimizer": states["optimizer"],
            "activations": held - freed,
            "transient": transient,
            "overhead": facts.stack.context_bytes + facts.stack.fragmentation * dynamic,
        }
        peak = _larger(peak, moment)
        freed = freed + kept[index] * load.repeats[index]
    return peak


def _shards_parameters(c: Columns) -> Any:
    return c.shard == code_of(Shard.PARAMETERS)


def _states(load: RankLoad, c: Columns, element: ElementBytes) -> dict[str, Any]:
    """Return the bytes that stay from step to step; what is offloaded is on the host."""
    ranks = shard_ranks(c)

    def divided(totals: ParameterTotals, least: Shard) -> Numbers:
        sharded = c.shard >= code_of(least)
        return sum(
            part / np.where(sharded, over, 1) for part, over in zip(local(totals, c), ranks, strict=True)
        )

    trainable = {
        shard: divided(load.trainable, shard)
        for shard in (Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER)
    }
    parameters_here = c.offload != code_of(Offload.PARAMETERS)
    frozen = divided(load.frozen, Shard.PARAMETERS)
    return {
        "parameters": parameters_here * element.parameter * (trainable[Shard.PARAMETERS] + frozen),
        "gradients": parameters_here * element.gradient * trainable[Shard.GRADIENTS],
        "optimizer": (c.offload == code_of(Offload.NONE)) * element.optimizer * trainable[Shard.OPTIMIZER],
    }


def _optimizer_step(
    facts: Facts, states: dict[str, Any], load: RankLoad, c: Columns, element: ElementBytes
) -> dict[str, Any]:
    """Return the composition while a foreach optimizer runs: no activations, one temporary copy."""
    sharded = c.shard >= code_of(Shard.OPTIMIZER)
    updated = sum(
        part / np.where(sharded, over, 1)
        for part, over in zip(local(load.trainable, c), shard_ranks(c), strict=True)
    )
    here = c.offload == code_of(Offload.NONE)
    return {
        **states,
        "activations": np.zeros_like(updated),
        "transient": here * element.step * updated,
        "overhead": facts.stack.context_bytes + np.zeros_like(updated),
    }


def _running(block: Block, kept: Bytes, c: Columns) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was recomputed."""
    return saved_bytes(block.working, c) + np.maximum(saved_bytes(block.activations.none, c) - kept, 0)


def _gathered(model: ModelSpec, load: RankLoad, index: int, c: Columns, element: ElementBytes) -> Bytes:
    """Return FSDP2's gathered parameters and unsharded gradients, or autocast's cached casts.

    The root unit stays gathered from forward to the end. With resharding two other units are gathered, the
    running one and the prefetched next; the running one's gradients exist in the compute format and,
    copied, in the reduction's. The root's are reduced last, when the first block has run; at the loss
    there are none yet. Under a pipeline torch gathers and reduces once a step: all units stay gathered and
    their gradients unsharded (``torch.distributed.pipelining.stage``).
    """
    held = [number for number, count in enumerate(load.repeats) if count]
    block, neighbour = model.blocks[index], _unit_beside(model, held, index)
    everything = sum(local(load.trainable, c)) + sum(local(load.frozen, c))
    root, beside = sum(local(load.root, c)), sum(local(neighbour, c))
    if block.unit:
        ahead, reduced = 2 * beside, beside
    elif index == held[0]:
        ahead, reduced = 0 * beside, root
    else:
        ahead, reduced = beside, 0 * beside
    units = np.where(c.reshard_after_forward & (c.pp == 1), ahead, everything - root)
    unreduced = element.reduce * np.where(c.pp > 1, everything, reduced)
    gathered = element.compute * (root + units + reduced) + unreduced
    several = np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1
    return np.where(_shards_parameters(c), gathered * several, element.cast * everything)


def _unit_beside(model: ModelSpec, held: list[int], index: int) -> ParameterTotals:
    """Return the block itself, or for a block of the root the unit that runs backward after it."""
    behind = [number for number in held if number <= index and model.blocks[number].unit]
    return block_totals(model.blocks[behind[-1]]) if behind else ParameterTotals()


def block_totals(block: Block) -> ParameterTotals:
    """Return one repeat's parameters by what divides them."""
    counts = {"replicated": 0, "tensor": 0, "expert": 0}
    for group in block.parameters:
        split = "replicated" if group.split.value == "sequence" else group.split.value
        counts[split] += group.count
    return ParameterTotals(**counts)
