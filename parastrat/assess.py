"""Facts and a plan to a judged case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.case import Case
from parastrat.columns import Columns
from parastrat.cost import time_columns, time_estimate
from parastrat.estimate import Estimate
from parastrat.hardware import DeviceType
from parastrat.launch import ON_PROCESSORS, Launch
from parastrat.memory import memory_columns, memory_estimate
from parastrat.memory.host import host_of
from parastrat.remembered import remembered
from parastrat.rules.backend import decide_backend
from parastrat.tables import facts_columns, plan_columns
from parastrat.units import TERA
from parastrat.workload import Precision

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from parastrat.case import Facts
    from parastrat.cost import BlockSeconds
    from parastrat.estimate import MemoryEstimate, TimeEstimate
    from parastrat.hardware import Device, Hardware
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.rules.backend import BackendDecision

    #: the seconds of plans' blocks, if they are known
    BlocksOf: TypeAlias = Callable[[Columns], BlockSeconds | None]


def assess(facts: Facts, plan: Plan) -> Case:
    """Estimate one plan; any mesh of positive degrees gets numbers.

    Raises:
        ProfileError: the plan crosses a link that the hardware does not state.
    """
    return assess_all(facts, (plan,))[0]


def assess_all(facts: Facts, plans: Sequence[Plan]) -> tuple[Case, ...]:
    """Estimate several plans of one job at once, as ``assess`` does one."""
    return assess_together([(facts, plan) for plan in plans])


def assess_together(
    several: Sequence[tuple[Facts, Plan]], blocks_of: BlocksOf | None = None
) -> tuple[Case, ...]:
    """Estimate plans of jobs that differ in the number of nodes alone, each with its job, at once.

    ``blocks_of`` tells the seconds of their blocks if it knows them.
    """
    if not several:
        return ()
    widest = widest_of(several)
    columns = Columns(facts_columns(widest) | plans_table([plan for _, plan in several]))
    return cases_of(several, estimated(widest, columns, blocks_of and blocks_of(columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """What plans need and how long they take, as ``memory_columns`` and ``time_columns`` tell it."""

    memory: dict[str, Any]
    time: dict[str, Any]


def plans_table(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return plans as columns, a row each."""
    rows = [plan_columns(plan) for plan in plans]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def widest_of(several: Sequence[tuple[Facts, Plan]]) -> Facts:
    """Return the job on the most nodes: memory and time do not hang on those that a plan leaves idle."""
    return max((facts for facts, _ in several), key=lambda facts: facts.hardware.num_nodes)


def estimated(facts: Facts, columns: Columns, blocks: BlockSeconds | None = None) -> Estimated:
    """Return the estimates of plans that are columns; ``blocks`` as of ``time_columns``."""
    return Estimated(memory=memory_columns(facts, columns), time=time_columns(facts, columns, blocks))


def cases_of(several: Sequence[tuple[Facts, Plan]], found: Estimated, first: int = 0) -> tuple[Case, ...]:
    """Return plans, each with its job, as cases, whose estimates begin at the row ``first``."""
    return tuple(
        Case(
            model=facts.model,
            hardware=facts.hardware,
            workload=facts.workload,
            stack=facts.stack,
            plan=plan,
            estimate=_estimate(
                facts, plan, time_estimate(found.time, row), memory_estimate(found.memory, row)
            ),
            launch=launch_of(facts.hardware, plan),
        )
        for row, (facts, plan) in enumerate(several, first)
    )


@remembered
def _flops_of(model: ModelSpec) -> float:
    """Return the FLOPs of one sample's forward that reach its output."""
    useful = {
        id(block): block.repeat * sum(each.flops * each.useful * each.count for each in block.operators)
        for block in model.distinct_blocks
    }
    return sum(useful[id(block)] for block in model.blocks)


def columns_of(case: Case) -> Columns:
    """Return a case's columns as plain numbers, with its memory."""
    memory = case.estimate.memory
    return Columns(
        {
            **facts_columns(case.facts),
            **plan_columns(case.plan),
            "memory_total": memory.total,
            "memory_margin": memory.margin,
            "memory_capacity": memory.capacity,
            **host_of(case.facts, case.plan),
        }
    )


def launch_of(hardware: Hardware, plan: Plan) -> Launch:
    """Return how the plan's processes are started on this hardware."""
    world, decision = plan.mesh.world_size, _decision_of(hardware)
    env = dict(decision.env)
    if hardware.device.type is DeviceType.CPU:
        env |= ON_PROCESSORS
    cores = hardware.host.cores
    if cores is not None and world > 1:
        # torchrun sets one thread where nothing is said; ranks that share a host share its cores
        env["OMP_NUM_THREADS"] = str(max(1, cores // hardware.devices_per_node))
    ranks = min(world, hardware.devices_per_node)
    return Launch(
        nodes=-(-world // ranks),
        ranks_per_node=ranks,
        backend=decision.init if world > 1 else "",
        device=hardware.device.type.value,
        env=env,
    )


@remembered
def _decision_of(hardware: Hardware) -> BackendDecision:
    return decide_backend(hardware)


def peak_flops_per_s(device: Device, precision: Precision) -> float | None:
    """Return the dense datasheet rate that MFU is a share of."""
    if precision is Precision.FP32:
        return device.peak.fp32
    if precision is Precision.FP8:
        return device.peak.fp8
    return device.peak.fp16 if precision is Precision.FP16_MIXED else device.peak.bf16


def _estimate(facts: Facts, plan: Plan, time: TimeEstimate, memory: MemoryEstimate) -> Estimate:
    samples, step = plan.global_batch_size, time.step
    units = samples * (facts.model.sequence_length or 1)
    world = plan.mesh.world_size
    # backward computes twice the forward's products
    model_flops_per_s = 3 * _flops_of(facts.model) * samples / step / world
    peak = peak_flops_per_s(facts.hardware.device, plan.precision)
    return Estimate(
        memory=memory,
        time=time,
        tokens_per_s_per_gpu=units / step / world,
        model_tflops_per_gpu=model_flops_per_s / TERA,
        mfu=model_flops_per_s / peak if peak else None,
    )
