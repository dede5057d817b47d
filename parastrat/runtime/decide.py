"""A plan decided here and now: this machine probed, this module traced, the data axes searched."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from parastrat.case import Facts
from parastrat.errors import InfeasibleError, UsageError
from parastrat.probe import probe_hardware
from parastrat.profiles import load_stack
from parastrat.runtime.stated import Choice
from parastrat.runtime.tensors.batches import batch_size
from parastrat.runtime.tensors.slots import without_data
from parastrat.search import Constraints, find_plan
from parastrat.sources.training import trained_model
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from parastrat.hardware import Hardware
    from parastrat.plan import Plan
    from parastrat.result import SearchResult
    from parastrat.runtime.launching.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What the caller says about the training that the plan must serve."""

    #: one micro-batch as the model's forward takes it
    inputs: Any = None
    workload: Workload | None = None
    #: the loop calls ``forward_backward``, which can accumulate
    accumulates: bool = False


def decide(module: nn.Module, example: Example, world: World) -> Choice:
    """Return the plan that the search recommends for this module on these ranks.

    Only what any training loop carries out is considered: DDP, FSDP2, HSDP, and recompute; accumulation
    with ``example.accumulates``.

    Raises:
        UsageError: without sample inputs and workload.
        ModelError: if the module cannot be traced.
        InfeasibleError: if nothing fits, naming what would.
    """
    if example.inputs is None and example.workload is None:
        raise UsageError(
            "no plan was given, and none can be decided without sample_inputs or workload",
            hint="pass plan=, set PARASTRAT_PLAN, run under `parastrat run`, or pass sample_inputs=",
        )
    from parastrat.runtime.tracing.trace import traced_module  # noqa: PLC0415  (only to decide)

    workload = example.workload or _workload(module, example.inputs, world)
    stack = load_stack("torch")
    source = traced_module(
        without_data(module), ref=type(module).__name__, sample_inputs=example.inputs, divides=False
    )
    model = trained_model(source, workload, stack.kernels)
    facts = Facts(model=model, hardware=_hardware(world), workload=workload, stack=stack)
    result = find_plan(facts, Constraints(pp=1, cp=1, tp=1, ep=1, plain_loop=not example.accumulates))
    plan = _for_all(result, world.world_size)
    sys.stderr.write(f"parastrat: decided on {plan.strategy} ({plan.mesh}), {_said(plan)}\n")
    return Choice(plan=plan, sequence_length=workload.sequence_length)


def _workload(module: nn.Module, inputs: Any, world: World) -> Workload:
    """Take the sample as one rank's share of a step, and the weights' format as the precision."""
    formats = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    return Workload(
        global_batch_size=batch_size(inputs) * world.world_size,
        sequence_length=_sequence_length(inputs),
        optimizer=Optimizer.ADAMW,
        precision=Precision.BF16 if formats == {torch.bfloat16} else Precision.FP32,
        assumed=("global_batch_size", "optimizer", "precision"),
    )


def _sequence_length(inputs: Any) -> int | None:
    """Return the second side of a batch of token ids; None for other inputs."""
    for leaf in tree_leaves(inputs):
        if isinstance(leaf, torch.Tensor):
            ids = leaf.ndim == 2 and not leaf.is_floating_point()
            return int(leaf.shape[1]) if ids else None
    return None


def _hardware(world: World) -> Hardware:
    """Return the probed machine with as many devices as there are ranks."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", world.world_size))
    hardware = probe_hardware(ranks_per_node=here)
    return replace(hardware, num_nodes=world.world_size // here)


def _for_all(result: SearchResult, world_size: int) -> Plan:
    """Return the best plan that uses every rank: they are started already.

    Raises:
        InfeasibleError: if there is none.
    """
    cases = [case for case in (result.chosen, result.fastest, *result.alternatives) if case is not None]
    fitting = [
        case.plan for case in cases if case.plan.mesh.world_size == world_size and case.estimate.fits
    ]
    if fitting:
        return fitting[0]
    nearest = "; ".join(", ".join(fit.changes) for fit in result.nearest_fit[:3])
    reasons = "; ".join(f"{rung.strategy}: {rung.reason}" for rung in result.rungs[:3] if rung.reason)
    raise InfeasibleError(
        f"no plan for {world_size} ranks fits this model ({reasons})",
        hint=f"what would fit: {nearest}"
        if nearest
        else "pass plan=, smaller sample_inputs, or more ranks",
    )


def _said(plan: Plan) -> str:
    return (
        f"{plan.precision}, micro-batch {plan.micro_batch_size}, global batch {plan.global_batch_size}, "
        f"recompute {plan.recompute}; pass plan= or workload= for another"
    )
