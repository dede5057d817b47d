"""What may be changed about a job that has no plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from parastrat.chunked_loss import USUAL_CHUNKS, has_whole_logits, in_chunks
from parastrat.search.divisible import with_divisible_batch
from parastrat.units import counted
from parastrat.workload import Optimizer, usual_precision

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from parastrat.case import Facts
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.search.rows import Constraints
    from parastrat.workload import Precision, Workload

    #: the model at a sequence length, in a number format
    ModelAt: TypeAlias = Callable[[int | None, Precision], ModelSpec]

_HALVINGS = 6
#: more than any cluster has
_MOST_DEVICES = 2**18


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A job after changes."""

    changes: tuple[str, ...]
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit(Changed):
    """A plan that fits a changed job."""

    plan: Plan


def smaller_states(job: Changed) -> Changed | None:
    """Return the job with an optimizer that keeps its states in 8 bits."""
    workload = job.facts.workload
    if workload.optimizer is not Optimizer.ADAMW:
        return None
    chosen = Optimizer.ADAMW_8BIT
    return Changed(
        changes=(*job.changes, f"optimizer {chosen.value} instead of {workload.optimizer.value}"),
        facts=replace(job.facts, workload=_stating(workload, optimizer=chosen)),
    )


def of_elements(job: Changed) -> Changed | None:
    """Return the job with an optimizer that needs no whole parameters, if its own does (PS394)."""
    workload = job.facts.workload
    if workload.optimizer is not Optimizer.ADAFACTOR or not job.facts.stack.dtensors:
        return None
    chosen = Optimizer.ADAMW
    return Changed(
        changes=(*job.changes, f"optimizer {chosen.value} instead of {workload.optimizer.value}"),
        facts=replace(job.facts, workload=_stating(workload, optimizer=chosen)),
    )


def loss_in_chunks(job: Changed) -> Changed | None:
    """Return the job with a loss that makes the logits of an eighth of the tokens at a time.

    None where it does so already, where the model has no such logits, or where the loss is that of a stack
    with kernels of its own, as Megatron's.
    """
    facts = job.facts
    if facts.stack.kernels.fused or not has_whole_logits(facts.model):
        return None
    return Changed(
        changes=(*job.changes, f"the loss in {USUAL_CHUNKS} chunks of tokens"),
        facts=replace(
            facts,
            model=in_chunks(facts.model, USUAL_CHUNKS),
            workload=replace(facts.workload, loss_chunks=USUAL_CHUNKS),
        ),
    )


def within_chunks(fixed: Constraints) -> Constraints | None:
    """Return what leaves plans for a loss in chunks alone, as PS108 has it; None where that leaves none."""
    if (fixed.tp or 1) > 1 or (fixed.pp or 1) > 1:
        return None
    return replace(fixed, tp=1, pp=1)


def usual_format(job: Changed, model_at: ModelAt) -> Changed | None:
    """Return the job in the number format that its devices compute natively; None where it is in that."""
    workload = job.facts.workload
    own, usual = workload.precision, usual_precision(job.facts.hardware.device)
    if own is usual:
        return None
    return Changed(
        changes=(*job.changes, f"precision {usual.value} instead of {own.value}"),
        facts=replace(
            job.facts,
            model=model_at(workload.sequence_length, usual),
            workload=replace(workload, precision=usual),
        ),
    )


def more_divisible(job: Changed) -> Changed | None:
    """Return the job with a global batch close by that more data ranks divide."""
    there = with_divisible_batch(job.facts)
    if there is None:
        return None
    own, batch = (facts.workload.global_batch_size for facts in (job.facts, there))
    change = f"a global batch of {batch:,} instead of {own:,}"
    return Changed(changes=(*job.changes, change), facts=there)


def larger_batch(job: Changed) -> Changed | None:
    """Return the job with a sample for each device; None where there are as many."""
    facts = job.facts
    own, batch = facts.workload.global_batch_size, facts.hardware.world_size
    if own >= batch:
        return None
    return Changed(
        changes=(*job.changes, f"a global batch of {batch:,} instead of {own:,}"),
        facts=replace(facts, workload=_stating(facts.workload, global_batch_size=batch)),
    )


def _stating(workload: Workload, **fields: Any) -> Workload:
    """Return a workload with other fields, which are no longer assumed."""
    return replace(
        workload, **fields, assumed=tuple(name for name in workload.assumed if name not in fields)
    )


def halvings(job: Changed, model_at: ModelAt | None) -> int:
    """Return how often a job's sequence may be halved; 0 where its length is not known."""
    length = job.facts.workload.sequence_length
    if model_at is None or length is None:
        return 0
    return min(_HALVINGS, length.bit_length() - 1)


def halved(job: Changed, model_at: ModelAt, times: int) -> Changed:
    """Return the job with its sequence halved so many times, the batch's tokens kept."""
    workload = job.facts.workload
    length = workload.sequence_length or 0
    short = length // 2**times
    shorter = replace(
        workload, sequence_length=short, global_batch_size=workload.global_batch_size * 2**times
    )
    change = f"sequences of {short:,} tokens instead of {length:,}"
    if "global_batch_size" not in workload.assumed:
        own, batch = workload.global_batch_size, shorter.global_batch_size
        change += f", and a global batch of {batch:,} instead of {own:,}"
    return Changed(
        changes=(*job.changes, change),
        facts=replace(job.facts, model=model_at(short, workload.precision), workload=shorter),
    )


def more_nodes(job: Changed) -> Iterator[Changed]:
    """Yield the job on more nodes, by doubling."""
    hardware = job.facts.hardware
    if hardware.scale_out is None:
        return
    nodes = 2 * hardware.num_nodes
    while nodes * hardware.devices_per_node <= _MOST_DEVICES:
        yield _on_nodes(job, nodes)
        nodes *= 2


def fewer_nodes(job: Changed) -> Iterator[Changed]:
    """Yield the job on fewer nodes, by powers of two, which more batches and models divide by."""
    nodes = job.facts.hardware.num_nodes
    yield from (_on_nodes(job, 2**power) for power in range((nodes - 1).bit_length() - 1, -1, -1))


def _on_nodes(job: Changed, nodes: int) -> Changed:
    hardware = job.facts.hardware
    other = replace(hardware, num_nodes=nodes, name=f"{hardware.name.split(':')[0]}:{nodes}")
    return Changed(
        changes=(
            *job.changes,
            f"{counted(nodes, 'node')} instead of {hardware.num_nodes}",
        ),
        facts=replace(job.facts, hardware=other),
    )
