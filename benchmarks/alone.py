"""The closed form of one plan called alone: processor time of its memory, and of memory, time and findings.

Usage: python benchmarks/alone.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.memory import memory_columns, plan_memory
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.sources import load_source
from parastrat.tables import facts_columns, plan_columns
from parastrat.workload import Optimizer, Precision, Workload

_CALLS = 1000
_SHARDED = {
    "micro_batch_size": 1,
    "precision": Precision.BF16_MIXED,
    "backend": Backend.NCCL,
    "shard": Shard.PARAMETERS,
}
#: the model, what it is trained on, and the plan
CASES: tuple[tuple[str, str, Plan], ...] = (
    (
        "llama-3.1-8b",
        "dgx-h100:1",
        Plan(mesh=Mesh(dp_shard=8), gradient_accumulation_steps=1, **_SHARDED),
    ),
    (
        "llama-3.1-70b",
        "dgx-h100:64",
        Plan(
            mesh=Mesh(pp=4, dp_shard=16, tp=8),
            gradient_accumulation_steps=8,
            sequence_parallel=True,
            recompute=Recompute.FULL,
            pp_schedule=PipelineSchedule.ONE_F_ONE_B,
            **_SHARDED,
        ),
    ),
)


def microseconds(call: Callable[[], object]) -> float:
    """Return the processor time of a call, when what is kept between calls is there."""
    call()
    begun = time.process_time()
    for _ in range(_CALLS):
        call()
    return (time.process_time() - begun) / _CALLS * 1e6


def main() -> None:
    """Print a line for each plan."""
    for model, on, plan in CASES:
        source, stack = load_source(model), load_stack("torch")
        if source is None:
            raise LookupError(model)
        facts = Facts(
            model=source.at(4096, Precision.BF16_MIXED, stack.kernels),
            hardware=load_hardware(on),
            workload=Workload(
                global_batch_size=plan.mesh.dp_shard * plan.gradient_accumulation_steps,
                sequence_length=4096,
                optimizer=Optimizer.ADAMW,
                precision=Precision.BF16_MIXED,
            ),
            stack=stack,
        )
        of_plan = {key: np.array([value]) for key, value in plan_columns(plan).items()}
        columns = Columns({**facts_columns(facts), **of_plan})
        memory = microseconds(partial(plan_memory, facts, plan))
        row = microseconds(partial(memory_columns, facts, columns))
        whole = microseconds(partial(assess, facts, plan))
        print(
            f"{model}, {plan.strategy}: memory {memory:,.0f} microseconds, "
            f"of a table's only row {row:,.0f}; assessed {whole:,.0f}"
        )


if __name__ == "__main__":
    main()
