"""PS1xx: memory and fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.chunked_loss import USUAL_CHUNKS
from parastrat.columns import code_of
from parastrat.finding import Hit, Severity
from parastrat.plan import Offload, Recompute, Shard
from parastrat.rules.rule import plan_rule
from parastrat.rules.runtime_support import refusals_of
from parastrat.units import GIB

if TYPE_CHECKING:
    from parastrat.case import Case
    from parastrat.columns import Columns
    from parastrat.plan import Plan
    from parastrat.units import Mask

#: bytes of one logit in the loss, which torch's cross entropy computes in fp32
_LOGIT_BYTES = 4

#: share of the card from which one tensor deserves a remark
_LARGE_SHARE = 4

_FULL = code_of(Recompute.FULL)
_PARAMETERS = code_of(Shard.PARAMETERS)


@plan_rule(
    "PS101",
    Severity.ERROR,
    source="https://docs.pytorch.org/docs/stable/torch_cuda_memory.html",
)
def does_not_fit(p: Columns) -> Mask:
    """A step must fit into the memory of its device.

    What counts is the worst moment on the worst rank: weights, gradients and optimizer state as far as
    they are not sharded, what the forward keeps for its backward, the buffers of the running block, and
    what context and allocator take. A device that runs out in step 3 has wasted the start of every rank.
    """
    return p.memory_total > p.memory_capacity


@does_not_fit.message
def _(case: Case) -> Hit:
    memory = case.estimate.memory
    name, size = max(memory.parts.items(), key=lambda part: part[1])
    return Hit(
        message=f"needs {memory.total / GIB:,.1f} of {memory.capacity / GIB:,.1f} GiB on "
        f"{case.hardware.device.name}; the largest part is {name} with {size / GIB:,.1f} GiB",
        fix=_less_memory(case),
    )


@plan_rule(
    "PS102",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management",
)
def is_tight(p: Columns) -> Mask:
    """The estimate's error must fit beside the peak.

    An estimate of memory misses by a few percent: fragmentation, workspaces and communicators vary with
    library versions. A plan whose peak fits only without that margin may run today and fail after an
    update, or at the first long batch.
    """
    return (p.memory_total <= p.memory_capacity) & (p.memory_total + p.memory_margin > p.memory_capacity)


@is_tight.message
def _(case: Case) -> Hit:
    memory = case.estimate.memory
    spare = (memory.capacity - memory.total) / GIB
    return Hit(
        message=f"{spare:.1f} GiB spare, less than the estimate's margin of error of "
        f"{memory.margin / GIB:,.1f} GiB",
        fix=f"{_less_memory(case)}, or {_tried(case)} first",
    )


@plan_rule(
    "PS103",
    Severity.INFO,
    source="https://arxiv.org/abs/2411.09009",
)
def logits_are_large(p: Columns) -> Mask:
    """Split or chunk the logits when they fill a good part of the card.

    The loss needs one number per token and vocabulary entry, in fp32, and its gradient as many again. With
    vocabularies of 128 thousand and long sequences that exceeds what all layers keep. Loss parallelism
    keeps them split over tp; a chunked or fused cross entropy never holds all of them.
    """
    split = (1 + p.loss_parallel * (p.tp - 1)) * p.loss_chunks
    logits = p.micro_batch_size * p.sequence_length * p.vocab * _LOGIT_BYTES / (p.cp * split)
    return logits * _LARGE_SHARE > p.memory_capacity


@logits_are_large.message
def _(case: Case) -> Hit:
    plan, tokens = case.plan, case.workload.sequence_length or 1
    split = (plan.mesh.tp if plan.loss_parallel else 1) * case.workload.loss_chunks
    vocab = case.model.vocab or 0
    logits = plan.micro_batch_size * tokens * vocab * _LOGIT_BYTES / (plan.mesh.cp * split)
    part = "a chunk" if case.workload.loss_chunks > 1 else "one micro-batch"
    return Hit(
        message=f"the logits of {part} ({plan.micro_batch_size} x {tokens:,} tokens x {vocab:,}) "
        f"take {logits / GIB:,.1f} GiB in fp32, and their gradient as much again",
        fix=_fewer_logits(plan, case.workload.loss_chunks),
    )


def _fewer_logits(plan: Plan, chunks: int) -> str:
    if plan.mesh.tp > 1 and not plan.loss_parallel:
        return "turn on loss_parallel"
    if plan.mesh.tp > 1 or plan.mesh.pp > 1:
        return "use a fused linear cross entropy, or smaller micro-batches"
    more = USUAL_CHUNKS * chunks
    return f"compute the loss in {more} chunks (parastrat.chunked_cross_entropy, --loss-chunks {more})"


@plan_rule(
    "PS104",
    Severity.WARNING,
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
)
def gathered_while_tight(p: Columns) -> Mask:
    """Free gathered parameters after the forward where memory is short.

    With `reshard_after_forward=False` every block's full parameters stay on the device from its forward to
    its backward. That saves one all-gather per block, for the memory of the whole unsharded model.
    """
    tight = p.memory_total + p.memory_margin > p.memory_capacity
    kept = (p.shard == _PARAMETERS) & (p.dp_shard * p.cp > 1) & (p.reshard_after_forward == 0)
    return tight & kept & (p.pp == 1)


@gathered_while_tight.message
def _(case: Case) -> Hit:
    held = case.estimate.memory.transient + case.estimate.memory.parameters
    return Hit(
        message=f"parameters and gathered copies take {held / GIB:,.1f} GiB while memory is short, because "
        "blocks stay gathered after their forward",
        fix="set reshard_after_forward = true",
    )


@plan_rule(
    "PS105",
    Severity.INFO,
    source="https://pytorch.org/blog/activation-checkpointing-techniques/",
)
def recomputes_with_room_to_spare(p: Columns) -> Mask:
    """Recompute everything only when memory asks for it.

    Full recompute runs every block's forward twice, about a third more work. While half of the card is
    free, selective recompute or none is likely to fit and faster; the search compares them.
    """
    return (p.recompute == _FULL) & (2 * (p.memory_total + p.memory_margin) < p.memory_capacity)


@recomputes_with_room_to_spare.message
def _(case: Case) -> Hit:
    memory = case.estimate.memory
    free = (memory.capacity - memory.total - memory.margin) / GIB
    return Hit(
        message=f"every block is computed again while {free:.1f} of {memory.capacity / GIB:,.1f} GiB "
        "are free",
        fix="try --recompute selective or none, or a larger micro-batch",
    )


@plan_rule(
    "PS108",
    Severity.ERROR,
    source="https://docs.nvidia.com/nemo/automodel/latest/nemo-automodel/nemo_automodel/components/loss/chunked_ce",
)
def chunks_of_divided_logits(p: Columns) -> Mask:
    """Compute a loss in chunks where a rank has the whole head.

    Such a loss calls the head on some tokens after others, inside of the forward. Under tp the head expects
    the sequence as ranks have it, and loss parallelism divides the logits already; under pp the loss is the
    schedule's, which has the last stage's output and not its head.
    """
    return (p.loss_chunks > 1) & ((p.tp > 1) | (p.pp > 1))


@chunks_of_divided_logits.message
def _(case: Case) -> Hit:
    mesh, chunks = case.plan.mesh, case.workload.loss_chunks
    axis = f"tp={mesh.tp}" if mesh.tp > 1 else f"pp={mesh.pp}"
    instead = "loss_parallel divides the logits" if mesh.tp > 1 else "the last stage alone has logits"
    return Hit(
        message=f"{axis} does not let a loss in {chunks} chunks call the head piece by piece",
        fix=f"leave --loss-chunks out ({instead}), or shard over data ranks alone",
    )


@plan_rule(
    "PS109",
    Severity.INFO,
    source="https://docs.nvidia.com/nemo/automodel/latest/nemo-automodel/nemo_automodel/components/loss/chunked_ce",
)
def chunks_are_the_scripts(p: Columns) -> Mask:
    """Compute the loss in chunks in the model's forward.

    A plan for a loss in chunks holds for a forward that makes the logits of some tokens at a time: no
    wrapping changes a loss. `parastrat.chunked_cross_entropy(lm_head, hidden, targets)` does so, inside of
    the forward, where FSDP2 has gathered the head.
    """
    return (p.loss_chunks > 1) & (p.tp == 1) & (p.pp == 1)


@chunks_are_the_scripts.message
def _(case: Case) -> Hit:
    chunks = case.workload.loss_chunks
    return Hit(
        message=f"memory and time are those of a forward that computes its loss in {chunks} chunks",
        fix=f"return parastrat.chunked_cross_entropy(lm_head, hidden, targets, chunks={chunks}) from it",
    )


def _less_memory(case: Case) -> str:
    """Name the cheapest step down that this plan has left."""
    plan, world, memory = case.plan, case.hardware.world_size, case.estimate.memory
    if plan.mesh.pp > 1 and 2 * memory.transient > memory.total and (fewer := _less_in_stages(case)):
        return fewer
    shards = plan.shard is Shard.PARAMETERS and plan.mesh.dp_replicate == 1
    further = plan.mesh.dp > 1 and not shards
    states = memory.parameters + memory.gradients + memory.optimizer > memory.capacity
    if further and states:
        # whatever else is kept
        return _sharded(plan)
    # at the optimizer's step activations are gone, and states may be too much alone: fewer do not help
    activations = memory.activations > 0 and not states
    if activations and plan.recompute is not Recompute.FULL and memory.activations * 4 > memory.total:
        return "recompute more (--recompute full)"
    if activations and plan.micro_batch_size > 1:
        return f"use a micro-batch of {plan.micro_batch_size // 2} instead of {plan.micro_batch_size}"
    if further:
        return _sharded(plan)
    if activations and plan.recompute is not Recompute.FULL:
        return "recompute more (--recompute full)"
    if plan.offload is Offload.NONE and case.hardware.device.host_bytes_per_s is not None:
        return f"offload the optimizer to host memory, or use more devices than {world}"
    return f"use more devices than {world}{'' if states else ', or a shorter sequence'}"


def _less_in_stages(case: Case) -> str:
    """Name what makes less pass through a pipeline's rank, where that is most of the peak."""
    plan, mesh = case.plan, case.plan.mesh
    if plan.shard is not Shard.PARAMETERS:
        # buffers for all micro-batches of a step, however many samples one of them has
        return "give each pipeline fewer samples: more data-parallel ranks, or a smaller --global-batch"
    # whole parameters and gradients, of four bytes together at least
    gathered = 4 * case.model.parameters / (mesh.pp * mesh.tp)
    if plan.shards_parameters and 2 * gathered > case.estimate.memory.transient:
        return "hold fewer layers on a rank, of which FSDP2 keeps all gathered: more pp, or tp"
    return ""


def _tried(case: Case) -> str:
    """Name what tells more of a plan's memory than its estimate."""
    refused = refusals_of(case.plan, case.model)
    return "run a few steps" if refused else "dry-run it with `parastrat verify`"


def _sharded(plan: Plan) -> str:
    """Name the plan that shards parameters over all of its data axes, its other axes as they are."""
    mesh = replace(plan.mesh, dp_replicate=1, dp_shard=plan.mesh.dp)
    strategy = replace(plan, mesh=mesh, shard=Shard.PARAMETERS).strategy
    return f"shard the parameters over all {plan.mesh.dp} data-parallel ranks (--strategy {strategy})"
