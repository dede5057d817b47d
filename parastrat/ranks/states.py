"""What a rank keeps from step to step: parameters, gradients and optimizer states, exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, derived, derived_with
from parastrat.hardware import DeviceType
from parastrat.plan import Offload, Shard
from parastrat.ranks.load import ParameterTotals, has_any
from parastrat.ranks.pipelines import DIVIDED
from parastrat.remembered import remembered
from parastrat.workload import Optimizer, Precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import Block, ModelSpec
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.load import RankLoad
    from parastrat.stack import Stack
    from parastrat.units import Numbers

#: bytes of one fp32 element, in which torch reduces gradients and takes optimizer steps
_FP32 = 4


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
    #: of the copy of a weight's gradient that is added to those of micro-batches before
    copied: float
    #: short-format copies that autocast keeps until backward, where the weights are not gathered anyway
    cast: float


@remembered
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
        gradient=_gradient_bytes(precision, stack) if mixed else parameter,
        optimizer=states + (stack.master_weight_bytes if mixed else 0),
        compute=precision.compute_bytes,
        reduce=_FP32 if mixed else parameter,
        step=_FP32 if facts.workload.optimizer is Optimizer.ADAMW and not stack.steps_in_one_kernel else 0,
        copied=_under(precision, stack.fp16_gradient_bytes and 0, _FP32) * mixed * stack.copies_gradients,
        cast=precision.compute_bytes if mixed and parameter == _FP32 else 0,
    )


def _gradient_bytes(precision: Precision, stack: Stack) -> int:
    return _under(precision, stack.fp16_gradient_bytes, stack.mixed_gradient_bytes)


def _under(precision: Precision, own: int | None, usual: int) -> int:
    """Return a stack's own figure of fp16-mixed, where it has one and that is the precision."""
    return usual if own is None or precision is not Precision.FP16_MIXED else own


@derived_with
def local(totals: ParameterTotals, c: Columns) -> tuple[Numbers, Numbers]:
    """Return the dense and the expert parameters that tp and ep leave on one rank; 0 if there are none."""
    some = has_any(totals.replicated) or has_any(totals.tensor)
    dense = totals.replicated + totals.tensor / c.tp if some else 0
    if has_any(totals.vocabulary):
        dense = dense + totals.vocabulary / vocabulary_tp(c)
    return dense, totals.expert / _expert_divisor(c) if has_any(totals.expert) else 0


@derived_with
def local_total(totals: ParameterTotals, c: Columns) -> Numbers:
    """Return the parameters that tp and ep leave on one rank, dense and expert."""
    dense, expert = local(totals, c)
    return dense + expert


@derived
def vocabulary_tp(c: Columns) -> Numbers:
    """Return over how many tp ranks tables and logits are divided; as is usual where nothing is known."""
    if not (c.has("vocab") and c.has("pads_vocabulary")):
        return c.tp
    divides: Numbers = np.where(c.pads_vocabulary | (c.vocab % c.tp == 0), c.tp, 1)
    return divides


@derived
def _expert_divisor(c: Columns) -> Numbers:
    divisor: Numbers = np.where(c.ep > 1, c.ep, expert_tp(c))
    return divisor


@derived
def expert_tp(c: Columns) -> Numbers:
    """Return over how many tp ranks what experts compute is divided: their width, or under ep their tokens.

    torchtitan splits what it sends over tp (``ReordererSequenceParallel``), and as much comes back from the
    other ranks. Without ep it is the stack's whether tp divides experts.
    """
    divisor: Numbers = np.where((c.ep > 1) | c.divides_experts, c.tp, 1)
    return divisor


@derived
def shard_ranks(c: Columns) -> tuple[Numbers, Numbers]:
    """Return over how many ranks dense and expert parameters are sharded, as torchtitan's meshes do."""
    dense = c.dp_shard * c.cp
    return dense, np.where(c.ep > 1, dense * c.tp / c.ep, dense)


def divided_over(parts: tuple[Numbers, Numbers], ranks: tuple[Numbers, Numbers], sharded: Any) -> Numbers:
    """Return dense and expert parameters, divided over their ranks where they are sharded."""
    own = [
        part / np.where(sharded, over, 1) for part, over in zip(parts, ranks, strict=True) if has_any(part)
    ]
    return sum(own[1:], own[0]) if own else 0


def state_bytes(load: RankLoad, c: Columns, element: ElementBytes) -> dict[str, Any]:
    """Return the bytes that stay from step to step; what is offloaded is on the host."""
    ranks, own = shard_ranks(c), local(load.trainable, c)

    def divided(parts: tuple[Numbers, Numbers], least: Shard) -> Numbers:
        return divided_over(parts, ranks, c.shard >= code_of(least))

    whole = divided(own, Shard.PARAMETERS)
    trainable = dict.fromkeys((Shard.PARAMETERS, Shard.GRADIENTS, Shard.OPTIMIZER), whole)
    if np.any((c.shard > code_of(Shard.NONE)) & (c.shard < code_of(Shard.PARAMETERS))):
        # what is searched shards all or nothing
        trainable |= {shard: divided(own, shard) for shard in (Shard.GRADIENTS, Shard.OPTIMIZER)}
    parameters_here = c.offload != code_of(Offload.PARAMETERS)
    frozen = divided(local(load.frozen, c), Shard.PARAMETERS)
    return {
        "parameters": parameters_here * element.parameter * (trainable[Shard.PARAMETERS] + frozen),
        "gradients": parameters_here * element.gradient * trainable[Shard.GRADIENTS],
        "optimizer": (c.offload == code_of(Offload.NONE)) * element.optimizer * trainable[Shard.OPTIMIZER],
    }


def updated_parameters(load: RankLoad, c: Columns) -> Numbers:
    """Return the parameters that one rank's optimizer updates."""
    return divided_over(local(load.trainable, c), shard_ranks(c), c.shard >= code_of(Shard.OPTIMIZER))


def stepping_bytes(load: RankLoad, c: Columns, element: ElementBytes) -> Numbers:
    """Return the temporary copy that a foreach optimizer makes on the device while it steps."""
    return (c.offload == code_of(Offload.NONE)) * element.step * updated_parameters(load, c)


def context_bytes(facts: Facts) -> int:
    """Return what an accelerator's context takes; a CPU process has none, its libraries are not counted."""
    if facts.hardware.device.type is DeviceType.CPU:
        return 0
    stack = facts.stack
    return _under(facts.workload.precision, stack.fp16_context_bytes, stack.context_bytes)


def cast_totals(block: Block) -> ParameterTotals:
    """Return one repeat's parameters of which autocast makes short copies, by what divides them."""
    cast = tuple(group for group in block.parameters if group.cast)
    return block_totals(replace(block, parameters=cast))


def added_totals(block: Block) -> ParameterTotals:
    """Return the weight whose gradients weigh most as they are added up, by what divides it."""
    return block_totals(replace(block, parameters=() if block.added is None else (block.added,)))


def block_totals(block: Block, *, of: bool = True, trainable: bool = False) -> ParameterTotals:
    """Return one repeat's parameters by what divides them, or the trainable alone; without ``of`` none."""
    counts = {"replicated": 0, "tensor": 0, "expert": 0, "vocabulary": 0}
    for group in block.parameters if of else ():
        split = "replicated" if group.split.value == "sequence" else group.split.value
        counts[split] += group.trainable if trainable else group.count
    return ParameterTotals(**counts)


@remembered
def unit_totals(kinds: Kinds) -> ParameterTotals:
    """Return one repeat's parameters of each kind of block, beside plans; none of blocks outside units."""
    return _totals_where(kinds, units=True)


@remembered
def root_totals(kinds: Kinds) -> ParameterTotals:
    """Return the parameters of each kind of block outside units, beside plans; none of units."""
    return _totals_where(kinds, units=False)


@remembered
def trainable_totals(kinds: Kinds) -> ParameterTotals:
    """Return the trainable parameters of one repeat of each kind of block, beside plans."""
    return totals_table([block_totals(block, trainable=True) for block in kinds.blocks])


def _totals_where(kinds: Kinds, *, units: bool) -> ParameterTotals:
    return totals_table([block_totals(block, of=block.unit is units) for block in kinds.blocks])


def totals_table(several: Sequence[ParameterTotals]) -> ParameterTotals:
    """Return the parameters of several blocks as columns beside those of plans."""
    table = np.array(
        [(each.replicated, each.tensor, each.expert, each.vocabulary) for each in several], dtype=float
    )
    totals = dict(zip(DIVIDED, table.T[..., None], strict=True))
    # tables have a row for each block, whatever it has
    rarely = {name: 0 for name in ("expert", "vocabulary") if not totals[name].any()}
    return ParameterTotals(**{**totals, **rarely})


def least_bytes(facts: Facts, offload: Offload) -> float:
    """Return what no plan of a job falls below on its worst rank: everything spread over all devices.

    What a rank holds between steps is at least an even share of the model, because meshes split each
    parameter over at most as many ranks as there are; and the worst rank holds the mean or more.
    """
    element, (trainable, frozen) = element_bytes(facts), _counted_once(facts.model)
    here = element.parameter * (trainable + frozen) + element.gradient * trainable
    states = {
        Offload.NONE: here + (element.optimizer + element.step) * trainable,
        Offload.OPTIMIZER: here,
        Offload.PARAMETERS: 0,
    }[offload]
    return states / facts.hardware.world_size + context_bytes(facts)


@remembered
def _counted_once(model: ModelSpec) -> tuple[int, int]:
    """Return a model's trainable and frozen parameters, tied ones once."""
    groups = [(group, block.repeat) for block in model.blocks for group in block.parameters]
    tied = {group.tie_group: group for group, _ in groups if group.tie_group is not None}
    once = [(group, 1) for group in tied.values()]
    once += [(group, count) for group, count in groups if group.tie_group is None]
    trainable = sum(group.trainable * count for group, count in once)
    return trainable, sum(group.frozen * count for group, count in once)
