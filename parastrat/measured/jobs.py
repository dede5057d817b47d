"""A measured run as facts and a plan. What its source leaves out is one default a stack, never a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.case import Facts
from parastrat.errors import ProfileError
from parastrat.measured.forms import FINE_TUNING, form_of
from parastrat.measured.models import source_of
from parastrat.measured.skipped import CannotPredictError
from parastrat.measured.stacks import (
    FOUR_BITS,
    attention_of,
    format_of,
    gathers_in_graph,
    has_four_bits,
    keeps_gathered,
    kernels_of,
    lasted_until,
    repeated_keys,
    stack_of,
    with_exchanges,
    with_stages,
)
from parastrat.plan import Backend, Compile, Mesh, PipelineSchedule, Plan, Recompute, Shard
from parastrat.profiles import load_hardware
from parastrat.profiles.nodes import with_ranks
from parastrat.rules.backend import decide_backend
from parastrat.sources.repeated import with_repeated_keys
from parastrat.sources.training import default_optimizer
from parastrat.workload import Precision, Workload

if TYPE_CHECKING:
    from parastrat.hardware import Device, Hardware
    from parastrat.measured.rows import MeasuredRow
    from parastrat.model import ModelSource
    from parastrat.stack import Stack

#: what tables call the ways to shard over data ranks
_SHARDS = {
    "none": Shard.NONE,
    "zero1": Shard.OPTIMIZER,
    "zero2": Shard.GRADIENTS,
    "zero3": Shard.PARAMETERS,
    "hsdp": Shard.PARAMETERS,
}
_HSDP = "hsdp"
#: torch's FSDP shards parameters too where it shards gradients, but gathers them once for forward and
#: backward (https://docs.pytorch.org/docs/stable/fsdp.html, ShardingStrategy.SHARD_GRAD_OP)
_SHARD_GRAD_OP = "zero2"

_TF32 = "tf32"
#: number formats by how their names begin; mxfp8 is fp8 with scales of its own
_PRECISIONS = {
    "bf16": Precision.BF16_MIXED,
    "fp16": Precision.FP16_MIXED,
    "fp32": Precision.FP32,
    # fp32 whose products read ten bits less
    _TF32: Precision.FP32,
    "fp8": Precision.FP8,
    "mxfp8": Precision.FP8,
}

#: devices of a node where a row states neither a machine nor the number
_USUAL_NODE = 8

_TASKS = (None, "pretrain", *FINE_TUNING)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """What ran."""

    facts: Facts
    plan: Plan


def job_of(row: MeasuredRow) -> MeasuredJob:
    """Return the job and the plan of a run; what was measured is never read.

    Raises:
        CannotPredictError: something is unknown that no stack has a default for, or cannot be estimated.
    """
    if row.task not in _TASKS:
        raise CannotPredictError(f"task {row.task} is none of {', '.join(filter(None, _TASKS))}")
    stack = stack_of(row)
    precision = _precision(row)
    hardware = _hardware(row)
    source = source_of(row)
    stack = replace(
        with_exchanges(row, stack, source),
        kernels=kernels_of(row, stack, source),
        gathers_in_graph=gathers_in_graph(row),
        attention=attention_of(stack, source),
    )
    length = row.seq_len if source.has_tokens else None
    if source.has_tokens and length is None:
        raise CannotPredictError("seq_len is not stated")
    row = with_stages(_as_published(row, source), stack)
    mesh, shard = _mesh(row, stack, hardware)
    micro_batch, steps = _batch(_with_usual_batch(row, stack, mesh), stack, mesh)
    plan = Plan(
        mesh=mesh,
        micro_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        precision=precision,
        backend=decide_backend(hardware).backend or Backend.GLOO,
        shard=shard,
        sequence_parallel=mesh.tp > 1
        and (stack.unstated.sequence_parallel if row.sequence_parallel is None else row.sequence_parallel),
        loss_parallel=mesh.tp > 1,
        async_tp=bool(row.async_tp),
        recompute=_recompute(row, stack),
        compile=Compile.BLOCK if row.compile == "block" else Compile.NONE,
        pp_schedule=_schedule(row, mesh),
        virtual_stages=(row.vpp or 1) if mesh.pp > 1 else 1,
        reshard_after_forward=_reshards(row, stack, mesh),
    )
    workload = Workload(
        global_batch_size=plan.global_batch_size,
        sequence_length=length,
        optimizer=default_optimizer(source),
        precision=precision,
        assumed=("optimizer",),
    )
    model = source.at(length, precision, stack.kernels)
    if mesh.cp > 1:
        model = with_repeated_keys(model, repeated_keys(row, stack, source))
    model = form_of(row, model, stack)
    return MeasuredJob(
        facts=Facts(model=model, hardware=hardware, workload=workload, stack=stack), plan=plan
    )


def _as_published(row: MeasuredRow, source: ModelSource) -> MeasuredRow:
    """Return a run with its model's published micro-batches where it is that run, by its batch."""
    known = source.defaults
    if row.micro_batch or not known.micro_batch_size or row.global_batch != known.global_batch_size:
        return row
    return replace(row, micro_batch=known.micro_batch_size, vpp=row.vpp or known.virtual_stages)


def _hardware(row: MeasuredRow) -> Hardware:
    """Return as many nodes as the run had; of one node perhaps a part."""
    if row.hardware is None and row.gpu is None:
        raise CannotPredictError("neither hardware nor gpu is stated")
    per_node = min(row.gpus_per_node or _USUAL_NODE, row.gpus)
    name = row.hardware or f"{(row.gpu or '').lower()}x{per_node}"
    try:
        hardware = load_hardware(name)
        per_node = min(row.gpus_per_node or hardware.devices_per_node, row.gpus)
        hardware = with_ranks(hardware, per_node)
    except ProfileError as error:
        raise CannotPredictError.because(error) from error
    if row.gpus % per_node:
        raise CannotPredictError(f"{row.gpus} devices are no whole nodes of {per_node}")
    if has_four_bits(row):
        hardware = replace(hardware, device=_multiplying(hardware.device, FOUR_BITS, "fp4", "fp8"))
    if format_of(row) == _TF32:
        hardware = replace(hardware, device=_multiplying(hardware.device, _TF32, _TF32, "fp32"))
    nodes = row.gpus // per_node
    return replace(hardware, num_nodes=nodes, name=name if nodes == 1 else f"{name}:{nodes}")


def _multiplying(device: Device, name: str, at: str, instead: str) -> Device:
    """Return a device that multiplies at the rate of one format where it is asked for another's."""
    peak, sustained = device.peak, device.sustained
    rates = getattr(peak, at), getattr(sustained, at)
    if None in rates:
        raise CannotPredictError(f"the rate of {device.name} for {name} is unknown")
    return replace(
        device,
        peak=replace(peak, **{instead: rates[0]}),
        sustained=replace(sustained, **{instead: rates[1]}),
    )


def _precision(row: MeasuredRow) -> Precision:
    stated = format_of(row)
    if not stated:
        raise CannotPredictError("precision is not stated")
    if has_four_bits(row):
        return Precision.FP8
    for name, precision in _PRECISIONS.items():
        if stated.startswith(name):
            return precision
    raise CannotPredictError(f"number format {row.precision} is not modelled")


def _mesh(row: MeasuredRow, stack: Stack, hardware: Hardware) -> tuple[Mesh, Shard]:
    model_ranks = (row.tp or 1) * (row.pp or 1) * (row.cp or 1)
    dp = row.dp or row.gpus // model_ranks
    if dp * model_ranks != row.gpus:
        raise CannotPredictError(f"dp {dp} x pp, cp and tp {model_ranks} are not {row.gpus} devices")
    shard = _shard(row, stack)
    over = 1 if shard is Shard.NONE else dp
    if row.fsdp == _HSDP:
        # shards of a node, replicas over nodes
        over = min(dp, row.gpus_per_node or hardware.devices_per_node)
    if dp % over:
        raise CannotPredictError(f"dp {dp} is no whole number of nodes of {over}")
    mesh = Mesh(
        pp=row.pp or 1,
        dp_replicate=dp // over,
        dp_shard=over,
        cp=row.cp or 1,
        tp=row.tp or 1,
        ep=row.ep or 1,
    )
    if (mesh.dp_shard * mesh.cp * mesh.tp) % mesh.ep and shard is not Shard.NONE:
        raise CannotPredictError(f"ep {mesh.ep} does not divide dp_shard x cp x tp")
    return mesh, shard


def _shard(row: MeasuredRow, stack: Stack) -> Shard:
    """Return what a run divides over its data ranks: where FSDP divides gradients, parameters too."""
    usual = stack.unstated.shard
    if row.fsdp is None or (row.fsdp == _SHARD_GRAD_OP and usual is Shard.PARAMETERS):
        return usual
    if row.fsdp not in _SHARDS:
        raise CannotPredictError(f"fsdp {row.fsdp} is none of {', '.join(_SHARDS)}")
    return _SHARDS[row.fsdp]


def _reshards(row: MeasuredRow, stack: Stack, mesh: Mesh) -> bool:
    """Return whether a run lets go of parameters behind forward; torchtitan's do not under a pipeline."""
    return mesh.pp == 1 and row.fsdp != _SHARD_GRAD_OP and not keeps_gathered(row, stack.unstated)


def _with_usual_batch(row: MeasuredRow, stack: Stack, mesh: Mesh) -> MeasuredRow:
    """Return a run with the batch of its stack's recipes where none is stated."""
    unstated = stack.unstated
    in_fp32 = _precision(row) is Precision.FP32
    samples = unstated.samples_of_rank_in_fp32 if in_fp32 else unstated.samples_of_rank
    if row.global_batch is not None or samples is None:
        return row
    return replace(row, micro_batch=samples, global_batch=samples * mesh.dp)


def _batch(row: MeasuredRow, stack: Stack, mesh: Mesh) -> tuple[int, int]:
    """Return samples of a micro-batch and micro-batches of a step."""
    if row.global_batch is None:
        raise CannotPredictError("global_batch is not stated")
    share, rest = divmod(row.global_batch, mesh.dp)
    size = row.micro_batch or _usual_micro_batch(row, stack, mesh, share)
    if size is None:
        raise CannotPredictError("micro_batch is not stated")
    if rest or not share or share % size:
        raise CannotPredictError(
            f"a global batch of {row.global_batch} is no multiple of dp {mesh.dp} x micro-batch {size}"
        )
    return size, share // size


def _usual_micro_batch(row: MeasuredRow, stack: Stack, mesh: Mesh, share: int) -> int | None:
    """Return the samples of a micro-batch where a run does not say, of so many of a rank; None: unknown."""
    unstated = stack.unstated
    if mesh.pp == 1:
        return (
            share // unstated.gradient_accumulation_steps if unstated.gradient_accumulation_steps else None
        )
    if unstated.single_samples_since is None:
        return None
    return 1 if lasted_until(row) >= unstated.single_samples_since else max(share // mesh.pp, 1)


def _recompute(row: MeasuredRow, stack: Stack) -> Recompute:
    stated = row.act_ckpt or row.act_ckpt_assumed
    if stated is None:
        return stack.unstated.recompute
    names = {"none": Recompute.NONE, "selective": stack.selective_recompute, "full": Recompute.FULL}
    if stated not in names:
        raise CannotPredictError(f"activation checkpointing {stated!r} is none of {', '.join(names)}")
    return names[stated]


def _schedule(row: MeasuredRow, mesh: Mesh) -> PipelineSchedule | None:
    if mesh.pp == 1:
        return None
    return PipelineSchedule.INTERLEAVED if (row.vpp or 1) > 1 else PipelineSchedule.ONE_F_ONE_B
