"""Facts and plans as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parastrat.columns import code_of
from parastrat.errors import CountError
from parastrat.model import Family
from parastrat.remembered import remembered
from parastrat.units import MOST_CHUNKS, MOST_RANKS, MOST_SAMPLES, MOST_TOKENS

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.hardware import Hardware
    from parastrat.model import Block, ModelSpec
    from parastrat.plan import Plan
    from parastrat.stack import Stack
    from parastrat.workload import Workload


def facts_columns(facts: Facts) -> dict[str, Any]:
    """Return the columns that do not depend on the plan; unknown facts are None."""
    return {
        **workload_columns(facts.workload),
        **model_columns(facts.model),
        **hardware_columns(facts.hardware),
        **stack_columns(facts.stack),
    }


def workload_columns(workload: Workload) -> dict[str, Any]:
    """Return what is trained with, as columns.

    Raises:
        CountError: as ``check_samples`` raises it.
    """
    check_samples(workload)
    return {
        "global_batch_size": workload.global_batch_size,
        "sequence_length": workload.sequence_length,
        "positions": workload.sequence_length,
        "without_tokens": workload.sequence_length is None,
        "loss_chunks": workload.loss_chunks,
        "optimizer": code_of(workload.optimizer),
    }


def model_columns(model: ModelSpec) -> dict[str, Any]:
    """Return what is trained, as columns."""
    scans = model.scans
    divided = scans if scans and scans.divided else None
    ties_ends, ties_inside = _ties_of(model)
    return {
        "layers": model.layers,
        "stacks": model.stacks,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "divisible": model.divisible,
        "vocab": model.vocab,
        "experts": model.experts,
        "max_sequence_length": model.max_sequence_length,
        "scan_heads": divided and divided.heads,
        "scan_groups": divided and divided.groups,
        "token_heads": model.kv_heads if model.divides_tokens else None,
        "whole_scans": scans is not None and not divided,
        "whole_sequences": not model.divides_sequences,
        # of a module that was traced its data flow tells
        "without_heads": model.heads is None and model.family is not Family.MODULE,
        "without_experts": model.experts is None,
        "ties_ends": ties_ends,
        "ties_inside": ties_inside,
    } | ({} if model.positions is None else {"positions": model.positions})


def _tied_in(block: Block) -> set[str]:
    """Return the groups of tied weights that a block has a part in."""
    return {group.tie_group for group in block.parameters if group.tie_group is not None}


@remembered
def _ties_of(model: ModelSpec) -> tuple[bool, bool]:
    """Return whether the ends share a weight, and whether a block between them does with one of them."""
    first, *inside = (_tied_in(block) for block in model.blocks)
    last = inside.pop() if inside else first
    return not first.isdisjoint(last), any(not own.isdisjoint(first | last) for own in inside)


def hardware_columns(hardware: Hardware) -> dict[str, Any]:
    """Return what is trained on, as columns."""
    device = hardware.device
    return {
        "devices": hardware.world_size,
        "devices_per_node": hardware.devices_per_node,
        "num_nodes": hardware.num_nodes,
        "scale_up_devices": hardware.scale_up_devices,
        "scale_up_kind": code_of(hardware.scale_up_kind),
        "device_type": code_of(device.type),
        "bf16_native": device.bf16_native,
        "has_fp8": device.peak.fp8 is not None,
    }


def stack_columns(stack: Stack) -> dict[str, Any]:
    """Return what it is trained by, as columns."""
    return {
        "divides_experts": stack.divides_experts,
        "pads_vocabulary": stack.pads_vocabulary,
        "splits_backward": stack.splits_backward,
        "dtensors": stack.dtensors,
    }


def plan_columns(plan: Plan) -> dict[str, Any]:
    """Return one plan's columns as plain numbers.

    Raises:
        CountError: a number of the plan is larger than columns can count.
    """
    check_counts(plan)
    return {
        **sized_columns(plan),
        "dp_replicate": plan.mesh.dp_replicate,
        "world_size": plan.mesh.world_size,
        "async_tp": plan.async_tp,
        "precision": code_of(plan.precision),
        "compile": code_of(plan.compile),
        "backend": code_of(plan.backend),
    }


def sized_columns(plan: Plan) -> dict[str, Any]:
    """Return those of one plan's columns that memory hangs on."""
    mesh = plan.mesh
    return {
        "pp": mesh.pp,
        "dp_shard": mesh.dp_shard,
        "cp": mesh.cp,
        "cp_method": code_of(plan.cp_method),
        "tp": mesh.tp,
        "ep": mesh.ep,
        "dp": mesh.dp,
        "micro_batch_size": plan.micro_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "virtual_stages": plan.virtual_stages,
        "shard": code_of(plan.shard),
        "reshard_after_forward": plan.reshard_after_forward,
        "sequence_parallel": plan.sequence_parallel,
        "loss_parallel": plan.loss_parallel,
        "recompute": code_of(plan.recompute),
        "offload": code_of(plan.offload),
        "pp_schedule": -1 if plan.pp_schedule is None else code_of(plan.pp_schedule),
    }


def check_samples(workload: Workload) -> None:
    """Check that what samples consist of can be counted.

    Raises:
        CountError: it cannot, and no job has as much.
    """
    _check_countable("sequence_length", workload.sequence_length or 1, MOST_TOKENS)
    _check_countable("loss_chunks", workload.loss_chunks, MOST_CHUNKS)


def check_counts(plan: Plan) -> None:
    """Check that what a plan makes many of can be counted.

    Raises:
        CountError: it cannot, and no job has as many.
    """
    _check_countable("micro_batch_size", plan.micro_batch_size, MOST_SAMPLES)
    _check_countable("gradient_accumulation_steps", plan.gradient_accumulation_steps, MOST_SAMPLES)
    axes = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    largest = tuple(sorted(axes, key=lambda axis: -int(getattr(plan.mesh, axis))))
    _check_countable("the product of the mesh", plan.mesh.world_size, MOST_RANKS, largest)
    _check_countable("ep", plan.mesh.ep, MOST_RANKS)
    stages = plan.mesh.pp * plan.virtual_stages
    _check_countable("pp x virtual_stages", stages, MOST_RANKS, ("virtual_stages", "pp"))


def _check_countable(name: str, number: int, most: int, fields: tuple[str, ...] = ()) -> None:
    """Refuse what no job has, before arrays of 64 bits are made of it; ``fields`` make it."""
    if number > most:
        raise CountError(
            f"{name} = {number:,} is more than parastrat counts",
            hint=f"at most {most:,}",
            fields=fields or (name,),
        )
