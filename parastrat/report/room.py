"""What takes the room at the peak, in words, and what would take less."""

from __future__ import annotations

from typing import TYPE_CHECKING

from parastrat.memory.phases import Stage
from parastrat.plan import Offload, Recompute, Shard
from parastrat.report.numbers import gib, percent, size
from parastrat.report.text import Line, Tone, heading, wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Case
    from parastrat.memory.phases import RankMemory
    from parastrat.plan import Plan
    from parastrat.report.text import Paper

#: of the peak; what takes less is not told
_WORTH_TELLING = 0.04
_WAITING = "the root's gradients, which are reduced while the next micro-batch runs"
_BUCKETS = "DDP's buckets, beside the gradients that micro-batches add to"
_MESSAGES = "buffers of the pipeline for what it receives of all micro-batches of a step"


def room_lines(case: Case, ranks: Sequence[RankMemory], paper: Paper) -> list[Line]:
    """Return what the fullest rank holds at its peak, the largest first, each with what makes it less."""
    rank = max(ranks, key=lambda each: each.peak.total)
    total = rank.peak.total
    lines = heading(f"What takes the room: {size(total)} {_when(rank)}", paper)
    for amount, words, less in sorted(_shares(case, rank), key=lambda share: -share[0]):
        if amount >= _WORTH_TELLING * total:
            lines += wrapped(f"{gib(amount)} GiB, {percent(amount / total)}: {words}", paper, first="  - ")
            lines += wrapped(f"less with {less}", paper, first="    ", tone=Tone.FAINT) if less else []
    return lines


def _when(rank: RankMemory) -> str:
    peak = rank.peak
    if peak.stage is Stage.STEP:
        return "while the optimizer steps"
    if peak.stage is Stage.FORWARD:
        return f"as the first {peak.block} is gathered, before it runs forward"
    repeat = f" ({peak.repeat})" if peak.repeat else ""
    return f"as {peak.block}{repeat} runs backward"


def _shares(case: Case, rank: RankMemory) -> Iterator[tuple[int, str, str]]:
    """Yield bytes, what they are, and what makes them less; together they are the peak."""
    peak, plan, parts = rank.peak, case.plan, rank.peak.parts
    yield parts["activations"], _kept(rank, plan), _less_kept(plan)
    if plan.shard is Shard.PARAMETERS:
        gathered = "parameters that FSDP2 has gathered, and gradients that are not reduced yet"
        options = "reshard_after_forward" if not plan.reshard_after_forward else "tensor parallelism"
        yield peak.gathered, gathered, "more stages or tensor parallelism" if plan.mesh.pp > 1 else options
    else:
        yield peak.gathered, "copies of the weights that autocast keeps until backward", "fsdp2"
    alone = plan.mesh.tp == plan.mesh.pp == 1
    fewer = "a loss in chunks (chunked_cross_entropy)" if alone else "a fused cross entropy"
    loss = fewer if peak.block == "head" and case.workload.loss_chunks == 1 else ""
    yield peak.running, f"what {peak.block or 'no block'} makes while it runs backward", loss
    yield rank.messages, _MESSAGES, "fewer samples a pipeline: more data-parallel ranks, or a smaller batch"
    rest = parts["transient"] - peak.gathered - peak.running - rank.messages
    waiting = _WAITING if plan.shard is Shard.PARAMETERS else _BUCKETS
    yield rest, "a temporary copy that the optimizer makes" if peak.stage is Stage.STEP else waiting, ""
    # sharding needs ranks to share with, and tp and pp may have all of them
    ranks = "" if plan.mesh.dp > 1 else " on more devices"
    sharded = "" if plan.shard is Shard.PARAMETERS else f"fsdp2{ranks}, which shards them"
    optimizer = case.workload.optimizer.value
    spread = sharded or ("offloading, or more devices" if plan.offload is Offload.NONE else "more devices")
    yield parts["optimizer"], f"states of {optimizer}", spread
    buffers = case.model.buffers
    whole = f" and buffers, of these {gib(buffers)} GiB whole on every rank"
    told = whole if buffers >= _WORTH_TELLING * peak.total else ""
    yield parts["parameters"], f"parameters{told}", sharded
    yield parts["gradients"], "gradients", sharded
    yield parts["overhead"], "context, buffers of collectives, and what the allocator loses", ""


def _kept(rank: RankMemory, plan: Plan) -> str:
    counts = dict(rank.blocks)
    if rank.in_flight == 1:
        counts = {name: count - rank.peak.freed.get(name, 0) for name, count in counts.items()}
    each = {name: rank.kept[name] * count for name, count in counts.items()}
    largest = sorted(each.items(), key=lambda block: -block[1])[:2]
    least = _WORTH_TELLING * sum(each.values())
    told = [f"{size(amount)} by {_times(name, counts[name])}" for name, amount in largest if amount > least]
    many = "" if rank.in_flight == 1 else f" of {rank.in_flight:g} micro-batches in flight"
    words = f"activations{many} kept for backward, recompute {plan.recompute.value}"
    return f"{words} ({'of each ' if many else ''}{', '.join(told)})" if told else words


def _times(name: str, count: int) -> str:
    return name if count == 1 else f"{count} x {name}"


def _less_kept(plan: Plan) -> str:
    ways = []
    if plan.recompute is not Recompute.FULL:
        ways.append("more recompute")
    if plan.micro_batch_size > 1:
        ways.append(f"a micro-batch of {plan.micro_batch_size // 2} instead of {plan.micro_batch_size}")
    return " or ".join(ways or ["shorter sequences, cp or tp"])
