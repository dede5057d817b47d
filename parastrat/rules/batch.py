"""PS40x: the arithmetic of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.finding import Hit, Severity
from parastrat.model import Family
from parastrat.rules.divisors import either, nearest_divisors, nearest_multiples
from parastrat.rules.rule import case_rule, plan_rule
from parastrat.units import counted

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

#: samples from which the statistics of one rank serve batch normalisation
_ENOUGH_FOR_STATISTICS = 16


@plan_rule(
    "PS401",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler",
)
def fewer_samples_than_ranks(p: Columns) -> Mask:
    """Every data-parallel rank needs at least one sample of each step.

    dp_replicate x dp_shard ranks see different samples. A batch that is smaller leaves ranks without work;
    more devices then help only along tp, cp or pp, which divide the work on one sample.
    """
    return p.global_batch_size < p.dp


@fewer_samples_than_ranks.message
def _(case: Case) -> Hit:
    batch, dp = case.workload.global_batch_size, case.plan.mesh.dp
    return Hit(
        message=f"a global batch of {batch:,} gives {dp:,} data-parallel ranks less than one sample each",
        fix=f"use a global batch of {dp:,}, or at most {batch:,} data-parallel "
        f"rank{'' if batch == 1 else 's'} and split the rest with tp, cp or pp",
    )


@plan_rule(
    "PS402",
    Severity.ERROR,
    source=""
    "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/core/num_microbatches_calculator.py",
    covers=("PIT301", "PIT302"),
)
def global_batch_does_not_divide(p: Columns) -> Mask:
    """micro-batch x accumulation x data-parallel ranks must be the global batch.

    cp and tp do not multiply it: their ranks work on the same samples. A product that is off trains with
    another batch than was asked for, which changes the learning-rate schedule's meaning silently.
    """
    product = p.micro_batch_size * p.gradient_accumulation_steps * p.dp
    return (p.global_batch_size != product) & (p.global_batch_size >= p.dp)


@global_batch_does_not_divide.message
def _(case: Case) -> Hit:
    plan, batch = case.plan, case.workload.global_batch_size
    unit = plan.micro_batch_size * plan.mesh.dp
    if batch % unit == 0:
        fix = f"use {counted(batch // unit, 'accumulation step')}"
    else:
        fix = f"use a global batch of {either(nearest_multiples(batch, unit))}"
        if batch % plan.mesh.dp == 0:
            share = batch // plan.mesh.dp
            sizes = either(nearest_divisors(plan.micro_batch_size, share))
            fix += f", or a micro-batch of {sizes}, which divide a rank's {share:,} samples"
    return Hit(
        message=f"micro-batch {plan.micro_batch_size:,} x "
        f"{counted(plan.gradient_accumulation_steps, 'accumulation step')} x "
        f"{counted(plan.mesh.dp, 'data-parallel rank')} = {plan.global_batch_size:,}, not the global batch "
        f"of {batch:,}",
        fix=fix,
    )


@plan_rule(
    "PS403",
    Severity.WARNING,
    source="https://huggingface.co/docs/transformers/main_classes/configuration",
)
def sequence_exceeds_positions(p: Columns) -> Mask:
    """Sequences should not be longer than the model's positions.

    Learned positions have no entry beyond their table: the first forward fails. Rotary positions run, but
    mean something that the model has not been built for unless their scaling is changed too.
    """
    return p.sequence_length > p.max_sequence_length


@sequence_exceeds_positions.message
def _(case: Case) -> Hit:
    length, longest = case.workload.sequence_length or 0, case.model.max_sequence_length or 0
    return Hit(
        message=f"sequences of {length:,} tokens, but {case.model.name} has positions for {longest:,}",
        fix=f"use {longest:,} tokens or fewer (--seq-len {longest}), or extend the model's positions",
    )


@case_rule(
    "PS404",
    Severity.INFO,
    source="https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html",
)
def batch_statistics_of_few_samples(case: Case) -> Hit | None:
    """Batch normalisation sees the samples of one rank alone.

    Its statistics come from the micro-batch of a rank, not from the global batch. With few samples they are
    noisy, and the model trains differently from a single device; SyncBatchNorm computes them together.
    """
    size, dp = case.plan.micro_batch_size, case.plan.mesh.dp
    if case.model.family is not Family.CONVOLUTIONAL or case.model.changing_buffers is False:
        return None
    if dp == 1 or size >= _ENOUGH_FOR_STATISTICS:
        return None
    return Hit(
        message=f"batch statistics of {size} sample{'s' if size > 1 else ''} on each of {dp:,} ranks",
        fix="convert the model with torch.nn.SyncBatchNorm.convert_sync_batchnorm, or use "
        "larger micro-batches",
    )
