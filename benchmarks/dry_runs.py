"""The closed form's peaks beside dry runs of the same plans: the runtime's own wrapping on fake tensors.

Usage: python benchmarks/dry_runs.py [EVERY]

Models are cut to four blocks. ``EVERY``: take every so many-th combination alone. Compared are bytes of
tensors: the estimate without its overhead, and the most that lives in a step after the first, on the rank
that needs most.
"""

from __future__ import annotations

import random
import statistics
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from dry_run_models import NAMES, cut

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.errors import WrapError
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.runtime.dry_run import preload, ranks_to_run, run_on_fakes
from parastrat.runtime.refusals import check_plan
from parastrat.units import GIB
from parastrat.workload import Optimizer, Precision, Workload

MODELS = Path(__file__).with_name("dry_run_models.py")
LENGTH = 4096
WAYS = {
    "single": {"mesh": Mesh(), "shard": Shard.NONE},
    "ddp": {"mesh": Mesh(dp_replicate=8), "shard": Shard.NONE},
    "ddp, 2 micro-batches": {
        "mesh": Mesh(dp_replicate=8),
        "shard": Shard.NONE,
        "gradient_accumulation_steps": 2,
    },
    "tp 2": {"mesh": Mesh(tp=2), "shard": Shard.NONE},
    "tp 4, sp": {"mesh": Mesh(tp=4), "shard": Shard.NONE, "sequence_parallel": True},
    "tp 8, sp, loss": {
        "mesh": Mesh(tp=8),
        "shard": Shard.NONE,
        "sequence_parallel": True,
        "loss_parallel": True,
    },
    "fsdp2 x tp 8, sp, loss": {
        "mesh": Mesh(dp_shard=8, tp=8),
        "sequence_parallel": True,
        "loss_parallel": True,
    },
    "hsdp x tp 4, sp": {"mesh": Mesh(dp_replicate=2, dp_shard=8, tp=4), "sequence_parallel": True},
    "ddp x tp 4, sp": {
        "mesh": Mesh(dp_replicate=8, tp=4),
        "shard": Shard.NONE,
        "sequence_parallel": True,
    },
    **{
        f"pp 4, {schedule.value}": {
            "mesh": Mesh(pp=4),
            "shard": Shard.NONE,
            "pp_schedule": schedule,
            "gradient_accumulation_steps": 8,
        }
        for schedule in (PipelineSchedule.GPIPE, PipelineSchedule.ONE_F_ONE_B)
    },
    **{
        f"pp 2, {schedule.value}": {
            "mesh": Mesh(pp=2),
            "shard": Shard.NONE,
            "pp_schedule": schedule,
            "virtual_stages": 2,
            "gradient_accumulation_steps": 8,
        }
        for schedule in (
            PipelineSchedule.INTERLEAVED,
            PipelineSchedule.INTERLEAVED_ZERO_BUBBLE,
            PipelineSchedule.ZBV,
        )
    },
    "pp 2 x fsdp2": {
        "mesh": Mesh(pp=2, dp_shard=8),
        "reshard_after_forward": False,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
        "gradient_accumulation_steps": 8,
    },
    "pp 2 x fsdp2 x tp 4, sp": {
        "mesh": Mesh(pp=2, dp_shard=8, tp=4),
        "reshard_after_forward": False,
        "sequence_parallel": True,
        "pp_schedule": PipelineSchedule.ONE_F_ONE_B,
        "gradient_accumulation_steps": 8,
    },
    "fsdp2": {"mesh": Mesh(dp_shard=64)},
    "fsdp2, kept gathered": {"mesh": Mesh(dp_shard=64), "reshard_after_forward": False},
    "fsdp2, 2 micro-batches": {"mesh": Mesh(dp_shard=64), "gradient_accumulation_steps": 2},
    "hsdp": {"mesh": Mesh(dp_replicate=8, dp_shard=8)},
}
SIZES = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combination:
    """What is compared."""

    model: str
    #: of ``WAYS``
    way: str
    recompute: Recompute
    #: samples of a micro-batch
    size: int = 1

    @property
    def plan(self) -> Plan:
        fields = {"gradient_accumulation_steps": 1, "shard": Shard.PARAMETERS, **WAYS[self.way]}
        return Plan(
            micro_batch_size=self.size,
            precision=Precision.BF16_MIXED,
            backend=Backend.NCCL,
            recompute=self.recompute,
            **fields,
        )

    @property
    def runs(self) -> bool:
        """Whether the runtime applies such plans."""
        try:
            check_plan(self.plan)
        except WrapError:
            return False
        return True


def compared(each: Combination) -> float:
    """Return the estimate over the dry run, less 1."""
    plan, source = each.plan, cut(each.model)
    length = min(LENGTH, source.architecture.positions or LENGTH)
    workload = Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=length,
        optimizer=Optimizer.ADAMW,
        precision=plan.precision,
    )
    stack = load_stack("torch")
    job = Facts(
        model=source.at(length, plan.precision, stack.kernels),
        hardware=load_hardware("dgx-h100:8"),
        workload=workload,
        stack=stack,
    )
    memory = assess(job, plan).estimate.memory
    ref = f"{MODELS}:{each.model.replace('-', '_').replace('.', '_')}"
    found = max(
        (run_on_fakes(ref, plan, workload, rank) for rank in ranks_to_run(job.model, plan)),
        key=lambda rank: rank.peak,
    )
    error = (memory.total - memory.overhead) / found.peak - 1
    print(
        f"{each.model}, {each.way}, recompute {each.recompute}, micro-batch {each.size}: "
        f"dry run {found.peak / GIB:.2f} GiB, {100 * error:+.2f} %",
        flush=True,
    )
    return error


def combinations() -> list[Combination]:
    """Return all that the runtime applies, in an order that is drawn once and for all."""
    every = (
        Combination(model=model, way=way, recompute=recompute, size=size)
        for model, way, recompute, size in product(NAMES, WAYS, Recompute, SIZES)
    )
    found = [each for each in every if each.runs]
    return random.Random(0).sample(found, len(found))  # noqa: S311  (a draw that can be repeated)


def main() -> None:
    """Print every comparison, and what the errors come to."""
    preload("transformers.models.llama.modeling_llama")
    every = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    errors = {each: abs(compared(each)) for each in combinations()[::every]}
    for way in WAYS:
        own = [error for each, error in errors.items() if each.way == way]
        if own:
            print(f"{way}: {_summary(own)}")
    print(_summary(list(errors.values())))


def _summary(errors: list[float]) -> str:
    near, far = (sum(error <= most for error in errors) for most in (0.03, 0.08))
    return (
        f"{len(errors)} combinations: median {100 * statistics.median(errors):.2f} %, {near} within 3 %, "
        f"{far} within 8 %, worst {100 * max(errors):.2f} %"
    )


if __name__ == "__main__":
    main()
