"""PS210 to PS220: options that need an axis, and axes that want an option."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.hardware import DeviceType
from parastrat.plan import Compile, Offload, Shard
from parastrat.rules.rule import plan_rule

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.units import Mask, Numbers

_TITAN = "https://github.com/pytorch/torchtitan/blob/b5bcd76/torchtitan"
_MEGATRON = "https://github.com/NVIDIA/Megatron-LM/blob/d98e8a6/megatron"

_NONE = code_of(Shard.NONE)


def are_shared(positions: Numbers, ranks: Numbers) -> Mask:
    """Return whether ranks have equally many of a sample's positions each; of 0 they have none."""
    return (positions > 0) & (positions % ranks == 0)


@plan_rule(
    "PS210",
    Severity.WARNING,
    source=f"{_MEGATRON}/core/model_parallel_config.py#L504",
    covers=("PIT211",),
)
def sequence_parallel_alone(p: Columns) -> Mask:
    """Sequence parallelism is a part of tensor parallelism.

    It splits the activations between tensor-parallel regions over the tp ranks. Without tp there is nothing
    to split over; long sequences alone are what context parallelism is for.
    """
    return (p.sequence_parallel == 1) & (p.tp == 1)


@sequence_parallel_alone.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"sequence_parallel is on with tp=1 ({case.plan.mesh}): it splits nothing",
        fix="turn sequence_parallel off, or use cp for long sequences",
    )


@plan_rule(
    "PS211",
    Severity.ERROR,
    source="https://arxiv.org/abs/2205.05198",
    covers=("PIT210",),
)
def sequence_does_not_divide(p: Columns) -> Mask:
    """With sequence parallelism the sequence must divide over cp x tp.

    The reduce-scatter behind every row-parallel layer hands each tp rank an equal part of its sequence
    chunk; a remainder is a shape error in the first forward.
    """
    return (p.sequence_parallel == 1) & (p.tp > 1) & (p.positions % (p.cp * p.tp) != 0)


@sequence_does_not_divide.message
def _(case: Case) -> Hit:
    mesh, length = case.plan.mesh, case.workload.sequence_length
    parts = mesh.cp * mesh.tp
    if length is None or length % parts == 0:
        return Hit(
            message=f"the {case.model.positions:,} positions of each sample of {case.model.name} do not "
            f"divide over tp {mesh.tp}",
            fix="turn sequence_parallel off: they are the model's own",
        )
    return Hit(
        message=f"a sequence of {length:,} tokens does not divide over cp {mesh.cp} x tp {mesh.tp} = "
        f"{parts}",
        fix=f"pad sequences to {-(-length // parts) * parts:,} tokens, or turn sequence_parallel off",
    )


@plan_rule(
    "PS212",
    Severity.INFO,
    source="https://arxiv.org/abs/2205.05198",
)
def tensor_without_sequence_parallel(p: Columns) -> Mask:
    """Tensor parallelism is better with sequence parallelism.

    Norms, dropouts and residuals between the tensor-parallel regions are otherwise kept and computed in
    full on every rank. The all-reduce becomes a reduce-scatter and an all-gather of the same total size.
    """
    return (p.tp > 1) & (p.sequence_parallel == 0) & are_shared(p.positions, p.cp * p.tp)


@tensor_without_sequence_parallel.message
def _(case: Case) -> Hit:
    tp = case.plan.mesh.tp
    return Hit(
        message=f"tp={tp} without sequence parallelism: each of {tp} ranks keeps the same activations "
        "between its layers",
        fix="turn sequence_parallel on",
    )


@plan_rule(
    "PS215",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def nothing_to_shard_over(p: Columns) -> Mask:
    """Sharding needs a shard axis.

    What `shard` names is split over dp_shard x cp ranks: those that share a sequence share the parameters
    too. With one such rank it holds all of it, so the plan costs FSDP's hooks and saves no memory;
    replicas alone are DDP.
    """
    return (p.shard != _NONE) & (p.dp_shard * p.cp == 1)


@nothing_to_shard_over.message
def _(case: Case) -> Hit:
    plan = case.plan
    replicas = plan.mesh.dp_replicate
    return Hit(
        message=f"shard = {plan.shard.value} over dp_shard x cp = 1 splits nothing ({plan.mesh})",
        fix=f"use dp_shard {replicas} instead of dp_replicate {replicas}, or shard = none"
        if replicas > 1
        else "set shard = none, or give dp_shard more ranks",
    )


@plan_rule(
    "PS216",
    Severity.WARNING,
    source=f"{_TITAN}/distributed/parallel_dims.py",
)
def replicas_on_the_shard_axis(p: Columns) -> Mask:
    """Replicas belong on dp_replicate.

    With shard = none the ranks of dp_shard hold full copies: the plan says sharded and means replicated.
    Frameworks that read dp_shard alone will shard.
    """
    return (p.shard == _NONE) & (p.dp_shard > 1)


@replicas_on_the_shard_axis.message
def _(case: Case) -> Hit:
    mesh = case.plan.mesh
    return Hit(
        message=f"shard = none, but dp_shard = {mesh.dp_shard}",
        fix=f"use dp_replicate {mesh.dp} with dp_shard 1 (--strategy ddp), or shard = parameters",
    )


@plan_rule(
    "PS217",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    covers=("PIT414",),
)
def offload_without_a_device(p: Columns) -> Mask:
    """Offloading moves state from an accelerator to its host.

    On CPU processes the state is there already. torch's CPUOffloadPolicy asks for an accelerator to copy
    from and fails without one.
    """
    return (p.offload != code_of(Offload.NONE)) & (p.device_type == code_of(DeviceType.CPU))


@offload_without_a_device.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"offload = {case.plan.offload.value} on {case.hardware.name}, whose ranks are processes",
        fix="set offload = none",
    )


@plan_rule(
    "PS219",
    Severity.INFO,
    source=""
    ""
    "https://docs.pytorch.org/docs/stable/distributed.tensor.parallel.html#torch.distributed.tensor.parallel.loss_parallel",
)
def loss_parallel_alone(p: Columns) -> Mask:
    """Loss parallelism splits the logits over tp.

    They come out of the last column-parallel layer split by vocabulary. Without tp they are whole already.
    """
    return (p.loss_parallel == 1) & (p.tp == 1)


@loss_parallel_alone.message
def _(case: Case) -> Hit:
    return Hit(
        message=f"loss_parallel is on with tp=1 ({case.plan.mesh}): it splits nothing",
        fix="turn loss_parallel off",
    )


@plan_rule(
    "PS220",
    Severity.WARNING,
    source="https://discuss.pytorch.org/t/distributed-w-torchtitan-introducing-async-tensor-parallelism-in-pytorch/209487",
)
def async_tensor_parallel_is_idle(p: Columns) -> Mask:
    """Asynchronous tensor parallelism needs tp and the compiler.

    The compiler splits each matrix multiply and its collective into pieces that overlap. Eager code runs
    them one after the other, whatever the flag says.
    """
    return (p.async_tp == 1) & ((p.tp == 1) | (p.compile == code_of(Compile.NONE)))


@async_tensor_parallel_is_idle.message
def _(case: Case) -> Hit:
    tp, compiled = case.plan.mesh.tp, case.plan.compile.value
    return Hit(
        message=f"async_tp is on with tp={tp} and compile = {compiled}: nothing overlaps",
        fix="set compile = block" if tp > 1 else "turn async_tp off",
    )
