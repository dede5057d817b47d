"""PS715 ff.: pipelines whose schedules compute the gradients of weights apart from those of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.plan import Compile, PipelineSchedule, Recompute, Shard
from parastrat.rules.rule import plan_rule
from parastrat.schedules import SPLITS, V_SHAPED, schedule_of

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask

_BENT = tuple(sorted(V_SHAPED))
_MEGATRON = (
    "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron/core/pipeline_parallel/schedules.py"
)


@plan_rule(
    "PS715",
    Severity.ERROR,
    source="https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/pipelining/_backward.py#L281",
)
def split_backward_repeats_recompute(p: Columns) -> Mask:
    """Do not recompute blocks under a schedule that splits backward in two.

    torch asks for the gradients of each product's weights in a call of its own, and a checkpoint makes the
    whole block again for each call: seven times for a Llama's, and what each time made is kept until the
    last. Recomputing attention alone is free of it, since attention has no weights.
    """
    again = (p.recompute == code_of(Recompute.SELECTIVE)) | (p.recompute == code_of(Recompute.FULL))
    return (p.pp > 1) & is_any_of(p.pp_schedule, SPLITS) & again


@split_backward_repeats_recompute.message
def _(case: Case) -> Hit:
    plan = case.plan
    return Hit(
        message=f"{schedule_of(plan)} splits backward, and recompute = {plan.recompute} would make every "
        "block again for each of its weights",
        fix="set recompute = none or attention, or pp_schedule = Interleaved1F1B or 1F1B",
    )


@plan_rule("PS716", Severity.ERROR, source="https://github.com/pytorch/pytorch/issues/161904")
def split_backward_is_compiled(p: Columns) -> Mask:
    """Do not compile blocks under a schedule that splits backward in two.

    A compiled block has one backward for all its gradients, and frees what that reads: asked a second time,
    for those of its weights, it fails.
    """
    return (p.pp > 1) & is_any_of(p.pp_schedule, SPLITS) & (p.compile != code_of(Compile.NONE))


@split_backward_is_compiled.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{schedule_of(case.plan)} splits backward, which a compiled block has in one",
        fix="set compile = none, or pp_schedule = Interleaved1F1B or 1F1B",
    )


@plan_rule("PS717", Severity.ERROR, source=_MEGATRON)
def stack_never_splits_backward(p: Columns) -> Mask:
    """A schedule that splits backward needs a stack that has it.

    Of the stacks that parastrat knows torch.distributed.pipelining alone computes the gradients of weights
    apart from those of inputs. Megatron-Core, DeepSpeed and FairScale order whole backwards.
    """
    # what is compiled is told by another rule
    return (
        (p.pp > 1)
        & is_any_of(p.pp_schedule, SPLITS)
        & (p.splits_backward == 0)
        & (p.compile == code_of(Compile.NONE))
    )


@stack_never_splits_backward.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{case.stack.name} has no {schedule_of(case.plan)}",
        fix="use --stack torch, or pp_schedule = Interleaved1F1B or 1F1B",
    )


@plan_rule("PS718", Severity.INFO, source="https://arxiv.org/abs/2401.10241")
def zero_bubble_is_unmeasured(p: Columns) -> Mask:
    """Measure a zero-bubble schedule against an interleaved one before a long run.

    No published run of PyTorch's tells both, so that the estimate is simulation: of torch's order, and of
    what the host does more, which was measured on CPUs. The paper's own runs are of another implementation.
    """
    return (p.pp > 1) & is_any_of(p.pp_schedule, SPLITS) & (p.compile == code_of(Compile.NONE))


@zero_bubble_is_unmeasured.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{schedule_of(case.plan)}: its time is derived, no published run of PyTorch tells it",
        fix=f"measure some steps of it and of {PipelineSchedule.INTERLEAVED.value}",
    )


@plan_rule(
    "PS719",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def tied_weight_is_sharded_twice(p: Columns) -> Mask:
    """A V schedule cannot shard a weight that the first stage and the last share.

    Its first rank has both of these stages. FSDP2 shards each stage as a model of its own, and no parameter
    twice; the copies of two ranks are two parameters, whose gradients are added up.
    """
    sharded = (p.shard == code_of(Shard.PARAMETERS)) & (p.dp_shard * p.cp > 1)
    return (p.pp > 1) & is_any_of(p.pp_schedule, _BENT) & sharded & (p.ties_ends == 1) & (p.dtensors == 1)


@tied_weight_is_sharded_twice.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"{schedule_of(case.plan)} has the first stage and the last on one rank, and a weight that "
        "both share would be sharded twice",
        fix="set pp_schedule = Interleaved1F1B or 1F1B, or plan replicas: shard = none over dp_replicate",
    )


@plan_rule(
    "PS720",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def weight_of_the_middle_is_sharded_twice(p: Columns) -> Mask:
    """An interleaved schedule cannot shard a weight that the middle of a model shares with an end.

    So do decoders behind encoders, whose embedding is the head's weight or the encoder's. Each rank has
    stages all over the model, and that of the middle is mostly on the rank of the first or the last, where
    FSDP2 would shard the weight in both.
    """
    sharded = (p.shard == code_of(Shard.PARAMETERS)) & (p.dp_shard * p.cp > 1)
    looped = (p.pp > 1) & (p.virtual_stages > 1) & (is_any_of(p.pp_schedule, _BENT) == 0)
    return looped & sharded & (p.ties_inside == 1) & (p.dtensors == 1)


@weight_of_the_middle_is_sharded_twice.message
def _(case: Case) -> Hit:
    stages = case.plan.virtual_stages
    return Hit(
        message=f"with {stages} stages a rank a weight that the middle of {case.model.name} shares with an "
        "end would be sharded twice",
        fix="set virtual_stages = 1 with 1F1B, or plan replicas: shard = none over dp_replicate",
    )
