"""Commands that the reader can type next, made of the plan that they are about."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parastrat.launch import YOUR_SCRIPT
from parastrat.plan import Offload, Shard
from parastrat.rules.runtime_support import refusals_of

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.plan import Plan
    from parastrat.result import Applied, SearchResult

#: flags that may ask for what ``auto_parallelize`` does not apply
_NOT_APPLIED = ("--cp", "--ep", "--strategy", "--offload")
_AXES = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What the report knows of the command line that asked for it."""

    #: MODEL, --on and the workload's flags as typed
    arguments: tuple[str, ...]
    #: flags that fix a part of the plan, as typed
    fixed: tuple[str, ...] = ()
    #: flags that decide between plans, as typed, which ``estimate`` does not take
    deciding: tuple[str, ...] = ()
    #: the plan file that was written
    plan_file: str | None = None
    #: where the assumed batch and sequence length come from
    defaults_source: str = ""


def typed(*words: str | Sequence[str]) -> str:
    """Return a command of words, quoted for a shell."""
    flat = [part for word in words for part in ([word] if isinstance(word, str) else word)]
    return shlex.join(["parastrat", *flat])


def estimate_command(context: Context, plan: Plan, output: str | None = None) -> str:
    """Return the ``estimate`` that gives this plan, and writes it where ``output`` is named."""
    more = ["-o", output] if output else []
    return typed("estimate", context.arguments, plan_flags(plan), more)


def recommend_command(
    context: Context, *more: str | Sequence[str], arguments: Sequence[str] | None = None
) -> str:
    """Return a ``recommend`` that decides as the reader's did, of the same or of other arguments."""
    return typed(
        "recommend", context.arguments if arguments is None else arguments, context.deciding, *more
    )


def plan_flags(plan: Plan) -> list[str]:
    """Return the flags that fix a plan."""
    flags: list[str] = []
    for axis in _AXES:
        degree = getattr(plan.mesh, axis)
        if degree > 1:
            flags += [f"--{axis.replace('_', '-')}", str(degree)]
    if plan.mesh.dp > 1 and plan.shard is not Shard.PARAMETERS:
        flags += ["--strategy", plan.strategy]
    flags += ["--micro-batch", str(plan.micro_batch_size), "--recompute", plan.recompute.value]
    if plan.offload is not Offload.NONE:
        flags += ["--offload", plan.offload.value]
    return flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A command with what it is for."""

    purpose: str
    command: str


def next_steps(case: Case, context: Context, written_by: str, applied: Applied | None = None) -> list[Step]:
    """Return what to type after a plan that can run: write it, then start it.

    Args:
        case: the plan with its facts.
        context: the command line that asked.
        written_by: the command that writes this plan to ``plan.toml``.
        applied: what ``auto_parallelize`` applies instead, if that was asked.
    """
    runs = not refusals_of(case.plan, case.model)
    if context.plan_file is None:
        steps = [Step(purpose="write the plan to a file", command=written_by)]
    elif runs:
        steps = [_start(case, context.plan_file)]
    else:
        steps = []
    if not runs and (applied is None or applied.case is not None):
        # auto_parallelize does not apply this plan; one that it does may be the better first step
        own = recommend_command(context, _kept(context.fixed), "--applied", "-o", "plan.toml")
        purpose = "the best plan that auto_parallelize applies itself"
        steps.append(Step(purpose=f"or {purpose}" if steps else purpose, command=own))
    return steps


def _kept(fixed: Sequence[str]) -> list[str]:
    """Return the flags, each with its value, that say nothing of axes or of the strategy."""
    pairs = zip(fixed[::2], fixed[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in _NOT_APPLIED for word in pair]


def steps_to_fit(result: SearchResult, context: Context) -> list[Step]:
    """Return the commands that recommend what would fit, for changes that flags can make."""
    steps = []
    for fit in result.nearest_fit:
        flags = _changed_flags(fit.case, result.facts)
        offload = fit.case.plan.offload
        moves = offload is not Offload.NONE and offload.value not in context.fixed
        fixed = _offloading(context.fixed if flags or moves else (), offload)
        is_said = "--on" in context.arguments or "--on" not in flags
        if is_said and (flags or fixed or context.fixed):
            command = recommend_command(context, fixed, arguments=_replaced(context.arguments, flags))
            steps.append(Step(purpose="; ".join(fit.changes), command=command))
    return steps


def _offloading(fixed: Sequence[str], offload: Offload) -> list[str]:
    """Return flags that fix a part of the plan with what is offloaded."""
    if "--offload" in fixed:
        place = list(fixed).index("--offload")
        fixed = [*fixed[:place], *fixed[place + 2 :]]
    return [*fixed] if offload is Offload.NONE else [*fixed, "--offload", offload.value]


def _changed_flags(case: Case, facts: Facts) -> dict[str, str]:
    """Return the flags whose value a nearest fit changes."""
    flags: dict[str, str] = {}
    if case.hardware.num_nodes != facts.hardware.num_nodes:
        flags["--on"] = case.hardware.name
    if case.workload.sequence_length != facts.workload.sequence_length:
        flags["--seq-len"] = str(case.workload.sequence_length)
    # an assumed batch would be another one there
    others = "--on" in flags and "global_batch_size" in case.workload.assumed
    if others or case.workload.global_batch_size != facts.workload.global_batch_size:
        flags["--global-batch"] = str(case.workload.global_batch_size)
    if case.workload.optimizer != facts.workload.optimizer:
        flags["--optimizer"] = case.workload.optimizer.value
    if case.workload.precision != facts.workload.precision:
        flags["--precision"] = case.workload.precision.value
    if case.workload.loss_chunks != facts.workload.loss_chunks:
        flags["--loss-chunks"] = str(case.workload.loss_chunks)
    return flags


def _replaced(arguments: Sequence[str], flags: dict[str, str]) -> list[str]:
    """Return arguments with other values of some flags, which are added where they are missing."""
    words = list(arguments)
    for flag, value in flags.items():
        if flag in words:
            words[words.index(flag) + 1] = value
        else:
            words += [flag, value]
    return words


def _start(case: Case, plan_file: str) -> Step:
    if case.launch.nodes > 1:
        command = typed("emit", plan_file, "--to", "slurm", "-o", "job")
        return Step(purpose=f"write the job for {case.launch.nodes} nodes", command=command)
    return Step(purpose="train", command=typed("run", plan_file, YOUR_SCRIPT))
