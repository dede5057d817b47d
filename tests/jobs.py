"""Jobs whose numbers can be worked out by hand.

The device multiplies 10^12 numbers a second in every format unless a test says otherwise, at any shape, and
moves 10^12 bytes a second; launches, hops and the step's constant take no time. A link inside a node of
eight carries 100 GB/s, one between nodes 10 GB/s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builders import STACK, device, hardware, model

from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.cost.communication import Fabric
from parastrat.hardware import Link, MatmulCurve, Rates
from parastrat.memory.alike import JobFlags, alike_of, code_of_plans
from parastrat.memory.flying import in_flight
from parastrat.model import Block, Operator, OperatorKind
from parastrat.plan import Backend, Mesh, Plan
from parastrat.saved import Activations, Saved
from parastrat.tables import plan_columns
from parastrat.workload import Optimizer, Precision, Workload

GB = 1e9
TERA = 1e12

SAME_RATE = Rates(fp32=TERA, bf16=TERA, fp16=TERA, fp8=TERA)
ANY_SHAPE = MatmulCurve(ceiling=1.0, m_half=0, n_half=0, k_half=0)
NO_COST = {
    "dp_overlap": 0.0,
    "zero_overlap": 0.0,
    "fsdp_overlap": 0.0,
    "network_efficiency": 1.0,
    "elementwise_factor": 1.0,
    "dispatched_factor": 1.0,
    "launches_per_operator": 1.0,
    "launches_per_dispatch": 1.0,
    "step_constant_s": 0.0,
}
INSIDE = Link(nominal_bytes_per_s=100 * GB, bytes_per_s=100 * GB, latency_s=0.0)
BETWEEN = Link(nominal_bytes_per_s=10 * GB, bytes_per_s=10 * GB, latency_s=0.0)
FABRIC = Fabric(scale_up=INSIDE, scale_out=BETWEEN, domain=8, efficiency=1.0)


def job(
    *blocks: Block,
    precision: Precision = Precision.BF16_MIXED,
    optimizer: Optimizer = Optimizer.ADAMW,
    num_nodes: int = 1,
    **changes: dict[str, Any],
) -> Facts:
    """Return facts about these blocks; ``changes`` are fields of device, hardware, stack and model."""
    gpu: dict[str, Any] = {
        "memory_bytes_per_s": TERA,
        "peak": SAME_RATE,
        "sustained": SAME_RATE,
        "matmul": ANY_SHAPE,
        "launch_s": 0.0,
    }
    cluster: dict[str, Any] = {
        "device": device(**(gpu | changes.get("device", {}))),
        "num_nodes": num_nodes,
        "scale_up": INSIDE,
        "scale_out": BETWEEN,
    }
    return Facts(
        model=model(blocks=blocks, precision=precision, **changes.get("model", {})),
        hardware=hardware(**(cluster | changes.get("hardware", {}))),
        workload=Workload(
            global_batch_size=8, sequence_length=1024, optimizer=optimizer, precision=precision
        ),
        stack=replace(STACK, **(NO_COST | changes.get("stack", {}))),
    )


def block(*operators: Operator, **changes: Any) -> Block:
    """Return a block that holds and keeps nothing but what a test says."""
    default: dict[str, Any] = {
        "name": "layer",
        "repeat": 1,
        "parameters": (),
        "operators": operators,
        "activations": Activations(none=Saved(), attention=Saved(), selective=Saved(), full=Saved()),
        "working": Saved(),
        "boundary_bytes": 0,
    }
    return Block(**(default | changes))


def matmul(flops: float, **changes: Any) -> Operator:
    """Return a matrix multiply of so many operations."""
    return Operator(**({"kind": OperatorKind.MATMUL, "flops": flops, "bytes": 0} | changes))


def plan(**changes: Any) -> Plan:
    """Return a plan; axes of the mesh may stand among its fields."""
    axes = {axis: changes.pop(axis) for axis in Mesh.__dataclass_fields__ if axis in changes}
    default: dict[str, Any] = {
        "mesh": Mesh(**axes),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "precision": Precision.BF16_MIXED,
        "backend": Backend.NCCL,
    }
    return Plan(**(default | changes))


def flying(c: Columns, rank: int) -> float:
    """Return the micro-batches that a rank of one plan has in flight."""
    alike = alike_of(JobFlags(fused=False, pooled=True, casts=False), int(code_of_plans(c)))
    return float(in_flight(alike, c, rank))


def row(**changes: Any) -> Columns:
    """Return one plan's columns."""
    return Columns({"divides_experts": True, "pads_vocabulary": True, **plan_columns(plan(**changes))})
