"""PS29x: what ``auto_parallelize`` applies today; other plans are estimated and emitted all the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.case import Case, Unknown, stated
from parastrat.columns import Columns, code_of
from parastrat.finding import Hit, Severity
from parastrat.plan import Compile, ContextMethod, Offload, PipelineSchedule, Recompute, Shard
from parastrat.rules import pipeline, whole_sequences
from parastrat.rules.rule import PlanRule, finding, plan_rule
from parastrat.rules.torchtitan_models import BASELINES
from parastrat.rules.whole_sequences import ELSEWHERE
from parastrat.schedules import schedule_of
from parastrat.tables import plan_columns
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.finding import Finding
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.units import Mask

_FSDP2 = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"

_OPTIMIZER = code_of(Shard.OPTIMIZER)
_GRADIENTS = code_of(Shard.GRADIENTS)
_PARAMETERS = code_of(Shard.PARAMETERS)
_ALL_GATHER = code_of(ContextMethod.ALL_GATHER)

_ZERO_BUBBLE = code_of(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)
_ZBV = code_of(PipelineSchedule.ZBV)
_DUAL_PIPE_V = code_of(PipelineSchedule.DUAL_PIPE_V)


@plan_rule(
    "PS290",
    Severity.INFO,
    source="https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html",
)
def axes_are_planned_only(p: Columns) -> Mask:
    """Expert and context parallelism over ranks that do not shard parameters are planned, not applied.

    `auto_parallelize` applies data, tensor and pipeline parallelism; and over ranks that shard parameters
    by FSDP2, context parallelism that gathers keys and values, and expert parallelism, whose groups hold
    tp's or are held by them. Without data ranks it applies ep over all of a tp group. Other plans with cp
    or ep are searched, estimated and written all the same, for they may be the right answer; another
    framework must run them.
    """
    data = p.dp_replicate * p.dp_shard * p.cp
    unsharded = (data > 1) & (p.shard != _PARAMETERS)
    held_again = (data == 1) & (p.ep != p.tp)
    neither_divides = (p.ep % p.tp != 0) & (p.tp % p.ep != 0)
    of_experts = (p.ep > 1) & (unsharded | held_again | neither_divides)
    return of_experts | ((p.cp > 1) & (unsharded | (p.cp_method != _ALL_GATHER)))


@axes_are_planned_only.message
def _(case: Case) -> Hit:
    plan, mesh = case.plan, case.plan.mesh
    axis = f"ep {mesh.ep}" if mesh.ep > 1 else f"cp {mesh.cp}"
    data = mesh.dp_replicate * mesh.dp_shard * mesh.cp
    if data > 1 and plan.shard is not Shard.PARAMETERS:
        what = f"{axis} without sharded parameters"
    elif mesh.ep % mesh.tp and mesh.tp % mesh.ep:
        what = f"{axis} beside tp {mesh.tp}, of which none divides the other,"
    elif data == 1:
        what = f"{axis} over a part of tp {mesh.tp} without data ranks"
    else:
        what = f"cp {mesh.cp} with cp_method = {plan.cp_method.value}"
    # which models Megatron-LM has nobody can say: its scripts are told their sizes
    elsewhere = "torchtitan or Megatron-LM" if stated(case.model, "ref") in BASELINES else ELSEWHERE
    return Hit(
        message=f"auto_parallelize does not apply {what} yet ({plan.strategy})",
        fix=f"run this plan with {elsewhere}, or take what `parastrat recommend --applied` finds, the best "
        "that auto_parallelize applies",
    )


@plan_rule("PS291", Severity.INFO, source=_FSDP2)
def sharded_state_without_parameters(p: Columns) -> Mask:
    """Sharding optimizer or gradients alone is left to Megatron and DeepSpeed.

    ZeRO-1 and ZeRO-2 are FSDP2 that keeps its parameters gathered. FSDP2 with
    `reshard_after_forward=False` shards the same states, communicates no more, and in addition frees the
    parameters between steps; so `auto_parallelize` offers that one alone.
    """
    return (p.shard == _OPTIMIZER) | (p.shard == _GRADIENTS)


@sharded_state_without_parameters.message
def _(case: Case) -> Hit:
    plan = case.plan
    stage = 1 if plan.shard is Shard.OPTIMIZER else 2
    return Hit(
        message=f"the plan shards the {plan.shard.value} alone (ZeRO-{stage}) over "
        f"{plan.mesh.dp_shard} ranks",
        fix=f"use the FSDP2 plan that needs no more memory: shard = parameters, reshard_after_forward = "
        f"false, {plan.mesh}",
    )


@plan_rule("PS292", Severity.INFO, source=_FSDP2)
def offload_is_planned_only(p: Columns) -> Mask:
    """Offload is planned, not applied, by this version.

    State in host memory frees the card and costs the host link twice a step. The estimate knows it;
    `auto_parallelize` does not do it yet.
    """
    return p.offload != code_of(Offload.NONE)


@offload_is_planned_only.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"auto_parallelize does not apply offload = {case.plan.offload.value} yet",
        fix="plan with offload = none; recompute or more devices save memory too",
    )


@plan_rule("PS293", Severity.INFO, source="https://github.com/pytorch/ao/tree/main/torchao/float8")
def fp8_is_planned_only(p: Columns) -> Mask:
    """Training in fp8 is planned, not applied, by this version.

    It replaces the linear layers by ones that scale and cast (torchao, Transformer Engine), which changes
    the model; `auto_parallelize` changes none.
    """
    return p.precision == code_of(Precision.FP8)


@fp8_is_planned_only.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"auto_parallelize does not apply precision = {case.plan.precision.value} yet",
        fix="use --precision bf16-mixed, or convert the linear layers with torchao beforehand",
    )


@plan_rule("PS294", Severity.INFO, source="https://arxiv.org/abs/2205.05198")
def attention_recompute_under_compile(p: Columns) -> Mask:
    """Recompute of attention alone is not applied to compiled blocks, nor with context parallelism.

    It is found by the modules around the attention core, which a compiled block fuses. With cp the core's
    keys and values would be kept of all ranks. Per-operator selective recompute works in both.
    """
    elsewhere = (p.compile == code_of(Compile.BLOCK)) | (p.cp > 1)
    return (p.recompute == code_of(Recompute.ATTENTION)) & elsewhere


@attention_recompute_under_compile.message
def _(case: Case) -> Hit:
    plan = case.plan
    return Hit(
        message=f"auto_parallelize does not apply recompute = {plan.recompute.value} with "
        + (f"cp {plan.mesh.cp}" if plan.mesh.cp > 1 else f"compile = {plan.compile.value}"),
        fix="use --recompute selective",
    )


@plan_rule("PS296", Severity.INFO, source="https://docs.pytorch.org/docs/stable/torch.compiler.html")
def selective_recompute_of_broken_graphs(p: Columns) -> Mask:
    """Selective recompute of compiled blocks is not applied with context or expert axes.

    A compiler does not follow attention to other ranks' positions, nor tokens on their way to experts: its
    graph breaks there. Where a part of what it follows is computed again, it gives up on all of it then.
    """
    broken = (p.cp > 1) | (p.ep > 1)
    return (p.compile == code_of(Compile.BLOCK)) & (p.recompute == code_of(Recompute.SELECTIVE)) & broken


@selective_recompute_of_broken_graphs.message
def _(case: Case) -> Hit:
    mesh = case.plan.mesh
    axes = [axis for axis in ("cp", "ep") if getattr(mesh, axis) > 1]
    return Hit(
        message="auto_parallelize does not apply compile = block with recompute = selective and "
        + " and ".join(axes),
        fix="use --recompute full, or compile = none (--stack torch)",
    )


@plan_rule("PS297", Severity.INFO, source=_FSDP2)
def replicas_over_the_shard_axis(p: Columns) -> Mask:
    """Ranks that shard nothing are replicas.

    dp_shard above one with shard = none has two readings; replicas are dp_replicate.
    """
    return (p.shard == code_of(Shard.NONE)) & (p.dp_shard > 1)


@replicas_over_the_shard_axis.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"auto_parallelize does not apply shard = none over dp_shard {case.plan.mesh.dp_shard}",
        fix="replicas are dp_replicate: plan --strategy ddp",
    )


@plan_rule("PS298", Severity.INFO, source=_FSDP2)
def resharding_stages(p: Columns) -> Mask:
    """Under a pipeline auto_parallelize keeps parameters gathered.

    Stages run forward and backward of several micro-batches in turn. Resharding after each forward gathers
    once more for each of them, and under schedules with split backwards torch 2.13 computes wrong
    gradients.
    """
    return (
        (p.pp > 1)
        & (p.shard == code_of(Shard.PARAMETERS))
        & p.reshard_after_forward
        & (p.dp_shard * p.cp > 1)
    )


@resharding_stages.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"auto_parallelize does not reshard after forward with pp {case.plan.mesh.pp}",
        fix="plan reshard_after_forward = false, with the memory that it takes",
    )


@plan_rule("PS299", Severity.INFO, source="https://arxiv.org/abs/2401.10241")
def selective_recompute_of_split_backwards(p: Columns) -> Mask:
    """Schedules that split the backward recompute whole blocks, or nothing.

    Zero-bubble and V-shaped schedules compute the gradients of inputs first and those of weights later.
    torch's selective checkpointing gives what it kept only once, to the first of the two.
    """
    split = (p.pp_schedule == _ZERO_BUBBLE) | (p.pp_schedule == _ZBV) | (p.pp_schedule == _DUAL_PIPE_V)
    return (p.pp > 1) & split & (p.recompute == code_of(Recompute.SELECTIVE))


@selective_recompute_of_split_backwards.message
def _(case: Case) -> Hit:
    plan = case.plan
    schedule = plan.pp_schedule.value if plan.pp_schedule else ""
    return Hit(
        message=f"auto_parallelize does not apply recompute = {plan.recompute.value} with {schedule}",
        fix="plan pp_schedule = Interleaved1F1B, or --recompute none",
    )


#: what ``auto_parallelize`` refuses, whatever the severity elsewhere
RUNTIME_RULES: tuple[PlanRule, ...] = (
    axes_are_planned_only,
    sharded_state_without_parameters,
    offload_is_planned_only,
    fp8_is_planned_only,
    attention_recompute_under_compile,
    selective_recompute_of_broken_graphs,
    whole_sequences.context_of_attention_without_kernel,
    replicas_over_the_shard_axis,
    resharding_stages,
    selective_recompute_of_split_backwards,
)


def refusals_of(plan: Plan, model: ModelSpec | None = None) -> tuple[Finding, ...]:
    """Return why ``auto_parallelize`` does not apply a plan; empty where it does.

    Args:
        plan: the plan.
        model: that it is of, as far as it is known; None: any.
    """
    if plan.mesh.pp > 1:
        plan = replace(plan, pp_schedule=schedule_of(plan))
    facts: dict[str, Any] = {
        part: Unknown(part) for part in ("model", "hardware", "workload", "stack", "estimate", "launch")
    }
    if model is not None:
        facts["model"] = model
    whole = stated(facts["model"], "divides_sequences") is False
    columns = Columns({**plan_columns(plan), "whole_sequences": whole})
    case = Case(plan=plan, **facts)
    rules = (*RUNTIME_RULES, *pipeline.SCHEDULE_RULES)
    return tuple(finding(rule, rule.hit(case)) for rule in rules if rule.mask(columns))
