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
from parastrat.hardware import DeviceType
from parastrat.model import Saved
from parastrat.plan import Offload, PipelineSchedule, Recompute, Shard
from parastrat.stages import ParameterTotals, RankLoad, rank_columns
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Facts
    from parastrat.model import Block, ModelSpec
    from parastrat.units import Bytes, Numbers

PARTS = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")

#: bytes of one fp32 element, in which torch reduces gradients and takes optimizer steps
_FP32 = 4


def memory_columns(facts: Facts, columns: Columns) -> dict[str, Any]:
    """Return the parts of ``MemoryEstimate`` for every row, bytes; plan columns are equal-length arrays."""
    kept = [kept_bytes(block, columns) for block in facts.model.blocks]
    running = [_running(block, own, columns) for block, own in zip(facts.model.blocks, kept, strict=True)]
    units = [sum(local(block_totals(block), columns)) for block in facts.model.blocks]
    blocks = list(zip(kept, running, units, strict=True))
    worst = {part: np.zeros(len(columns.pp)) for part in PARTS}
    for load in rank_columns(facts.model, columns):
        worst = _larger(worst, _rank_peak(facts, columns, load, blocks))
    parts = {part: np.ceil(worst[part]).astype(np.int64) for part in PARTS}
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


def _larger(one: dict[str, Any], other: dict[str, Any], where: Any = True) -> dict[str, Any]:
    """Return, row by row, the composition with the larger total; the first one outside ``where``."""
    larger = (sum(other[part] for part in PARTS) > sum(one[part] for part in PARTS)) & where
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
    facts: Facts, c: Columns, load: RankLoad, blocks: list[tuple[Bytes, Bytes, Numbers]]
) -> dict[str, Any]:
    """Return the composition at the peak of one pipeline rank.

    ``blocks`` gives for each block what one repeat keeps for backward, what exists while it runs, and its
    parameters on one tensor- or expert-parallel rank.
    """
    element = element_bytes(facts)
    states = _states(load, c, element)
    held = in_flight(c, load.rank) * sum(
        kept * count for (kept, _, _), count in zip(blocks, load.repeats, strict=True)
    )
    gathered = _gathered(facts.model, load, c, element, [unit for _, _, unit in blocks])
    peak = _optimizer_step(facts, states, load, c, element)
    freed: Bytes = 0
    at_loss: Any = True
    for (kept, running, _), count, whole in reversed(
        list(zip(blocks, load.repeats, gathered, strict=True))
    ):
        transient = whole + running
        # sharded gradients come with the first reduction: after the loss, under a pipeline at the end
        unreduced = (c.pp > 1) | (at_loss & (c.gradient_accumulation_steps == 1))
        moment = {
            "parameters": states["parameters"],
            "gradients": np.where(unreduced & _shards_parameters(c), 0, states["gradients"]),
            "optimizer": states["optimizer"],
            "activations": held - freed,
            "transient": transient,
            "overhead": _context_bytes(facts) + facts.stack.fragmentation * (held - freed + transient),
        }
        peak = _larger(peak, moment, count > 0)
        at_loss = at_loss & (count == 0)
        freed = freed + kept * count
    return peak


def _context_bytes(facts: Facts) -> int:
    """Return what an accelerator's context takes; a CPU process has none, its libraries are not counted."""
    return 0 if facts.hardware.device.type is DeviceType.CPU else facts.stack.context_bytes


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


def updated_parameters(load: RankLoad, c: Columns) -> Numbers:
    """Return the parameters that one rank's optimizer updates."""
    sharded = c.shard >= code_of(Shard.OPTIMIZER)
    return sum(
        part / np.where(sharded, over, 1)
        for part, over in zip(local(load.trainable, c), shard_ranks(c), strict=True)
    )


def _optimizer_step(
    facts: Facts, states: dict[str, Any], load: RankLoad, c: Columns, element: ElementBytes
) -> dict[str, Any]:
    """Return the composition while a foreach optimizer runs: no activations, one temporary copy."""
    updated = updated_parameters(load, c)
    here = c.offload == code_of(Offload.NONE)
    return {
        **states,
        "activations": np.zeros_like(updated),
        "transient": here * element.step * updated,
        "overhead": _context_bytes(facts) + np.zeros_like(updated),
    }


def _running(block: Block, kept: Bytes, c: Columns) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was recomputed."""
    return saved_bytes(block.working, c) + np.maximum(saved_bytes(block.activations.none, c) - kept, 0)


def _gathered(
    model: ModelSpec, load: RankLoad, c: Columns, element: ElementBytes, units: list[Numbers]
) -> list[Bytes]:
    """Return for each block FSDP2's gathered parameters and unsharded gradients, or autocast's casts.

    The root unit stays gathered from forward to the end. With resharding two other units are gathered, the
    running one and the prefetched next; the running one's gradients exist in the compute format and,
    copied, in the reduction's. The root's are reduced last, when the first block has run; at the loss
    there are none yet. Under a pipeline torch gathers and reduces once a step: all units stay gathered and
    their gradients unsharded (``torch.distributed.pipelining.stage``).
    """
    everything = sum(local(load.trainable, c)) + sum(local(load.frozen, c))
    root = sum(local(load.root, c))
    several = np.where(c.ep > 1, c.dp_shard * c.cp * c.tp, c.dp_shard * c.cp) > 1
    resharded = c.reshard_after_forward & (c.pp == 1)
    behind: Numbers = 0.0
    before: Numbers = 0.0
    found = []
    for block, unit, count in zip(model.blocks, units, load.repeats, strict=True):
        if block.unit:
            behind = np.where(count > 0, unit, behind)
            ahead, reduced = 2 * unit, unit
        else:
            # the unit that runs backward next is prefetched; the first block has none behind it
            ahead, reduced = behind, np.where(before == 0, root, 0.0)
        before = before + count
        whole = np.where(resharded, ahead, everything - root)
        unreduced = element.reduce * np.where(c.pp > 1, everything, reduced)
        gathered = element.compute * (root + whole + reduced) + unreduced
        found.append(np.where(_shards_parameters(c), gathered * several, element.cast * everything))
    return found


def block_totals(block: Block) -> ParameterTotals:
    """Return one repeat's parameters by what divides them."""
    counts = {"replicated": 0, "tensor": 0, "expert": 0}
    for group in block.parameters:
        split = "replicated" if group.split.value == "sequence" else group.split.value
        counts[split] += group.count
    return ParameterTotals(**counts)
