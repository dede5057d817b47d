"""Cases on which a rule fires, for ``explain``: found among plans that people might write."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from parastrat.assess import assess_all, columns_of
from parastrat.case import Facts
from parastrat.errors import UnknownFactError
from parastrat.plan import Backend, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware, load_stack
from parastrat.rules import CaseRule, PlanRule
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Case
    from parastrat.finding import Hit
    from parastrat.rules import Rule

#: model, hardware, sequence length
_JOBS = (
    ("llama-3.1-8b", "dgx-h100:2", 8192),
    ("mixtral-8x7b", "dgx-h100:8", 4096),
    ("gpt2", "8x-rtx-4090:2", 2048),
    ("llama-3.1-8b", "dgx-1v:2", 8191),
)
_BATCH = 128


def example_of(rule: Rule) -> tuple[str, Hit] | None:
    """Return a case in words and what a rule says of it; None where none of those tried shows it."""
    if not isinstance(rule, PlanRule | CaseRule):
        return None
    for model, on, length in _JOBS:
        facts = _facts(model, on, length)
        for case in assess_all(facts, tuple(_plans(facts))):
            hit = _hit(rule, case)
            if hit is not None:
                return f"{model} on {on} with {case.plan.mesh}", hit
    return None


def _hit(rule: PlanRule | CaseRule, case: Case) -> Hit | None:
    try:
        if isinstance(rule, CaseRule) or rule.mask(columns_of(case)):
            return rule.hit(case)
    except UnknownFactError:
        pass
    return None


def _facts(model: str, on: str, length: int) -> Facts:
    stack, precision = load_stack("torch"), Precision.BF16_MIXED
    source = load_source(model)
    if source is None:
        raise AssertionError("presets need no torch")
    return Facts(
        model=source.at(length, precision, stack.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=_BATCH,
            sequence_length=length,
            optimizer=Optimizer.ADAMW,
            precision=precision,
        ),
        stack=stack,
    )


def _plans(facts: Facts) -> Iterator[Plan]:
    """Yield plans from the plainest to the strangest."""
    world = facts.hardware.world_size
    for pp, tp, cp, ep in product((1, 2, 3, 64), (1, 2, 16, 5), (1, 2), (1, 3, 8)):
        data = max(1, world // (pp * tp * cp))
        for shard, micro_batch in product((Shard.PARAMETERS, Shard.NONE, Shard.OPTIMIZER), (1, 64)):
            sharded = shard is not Shard.NONE
            yield Plan(
                mesh=Mesh(
                    pp=pp,
                    dp_replicate=1 if sharded else data,
                    dp_shard=data if sharded else 1,
                    cp=cp,
                    tp=tp,
                    ep=ep,
                ),
                micro_batch_size=micro_batch,
                gradient_accumulation_steps=max(1, _BATCH // (data * micro_batch)),
                precision=facts.workload.precision,
                backend=Backend.NCCL,
                shard=shard,
                reshard_after_forward=pp == 1,
                sequence_parallel=tp == 2,
                recompute=Recompute.FULL if micro_batch == 1 else Recompute.NONE,
                pp_schedule=PipelineSchedule.INTERLEAVED if pp > 1 else None,
                virtual_stages=2 if pp > 1 else 1,
            )
