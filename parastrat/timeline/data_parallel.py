"""What the streams of one device do in a step without a pipeline, and what waits for what.

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py. In forward FSDP2 gathers the next unit
when the one before the running one has ended, as its gathered parameters are copied out then; in backward
likewise, the other way round. A unit's gradients are reduce-scattered when its backward ends, and the next
unit's backward but one waits for that, so that no more than one reduction lies beside. The root's gathering
waits for all that came before. DDP all-reduces gradients as backward makes them, of the last micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parastrat.timeline.kinds import Kind
from parastrat.timeline.streams import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.units import Seconds

COMPUTE, GATHER, REDUCE = "compute", "gather", "reduce"
_STREAMS = {
    Kind.FORWARD: COMPUTE,
    Kind.BACKWARD: COMPUTE,
    Kind.GATHER: GATHER,
    Kind.REDUCE: REDUCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What one unit takes in one micro-batch, seconds, each with the device for itself."""

    name: str
    forward: Seconds
    #: with what is computed again
    backward: Seconds
    gather: Seconds = 0.0
    #: of its gradients, in every micro-batch
    reduce: Seconds = 0.0
    #: of its gradients in the last one alone
    reduce_last: Seconds = 0.0
    #: of what it gathers into its weights, and of its gradients into what is reduced, beside computing
    copied_out: Seconds = 0.0
    copied_into: Seconds = 0.0


@dataclass(slots=True, kw_only=True)
class _Step:
    works: list[Work] = field(default_factory=list)

    def add(self, kind: Kind, name: str, seconds: Seconds, *after: int | None) -> int | None:
        """Add work, and return its place; None and nothing is added where it takes no time."""
        if seconds <= 0:
            return None
        waits = tuple(place for place in after if place is not None)
        self.works.append(Work(kind, name, _STREAMS[kind], seconds, waits))
        return len(self.works) - 1


def works_of(units: Sequence[Unit], root: Unit, micro_batches: int, *, again: bool) -> tuple[Work, ...]:
    """Return the work of a step, in the order of every stream.

    Args:
        units: in the order of forward.
        root: what is gathered first and reduced last, and computes nothing of its own.
        micro_batches: of the step.
        again: parameters are freed after forward and gathered again for backward.
    """
    step = _Step()
    ended: int | None = None
    for batch in range(micro_batches):
        ended = _micro_batch(step, units, root, ended, last=batch == micro_batches - 1, again=again)
    return tuple(step.works)


def _micro_batch(
    step: _Step, units: Sequence[Unit], root: Unit, begun: int | None, *, last: bool, again: bool
) -> int | None:
    """Add one micro-batch, and return the place of its last computation."""
    rooted = step.add(Kind.GATHER, root.name, root.gather, begun)
    before, running = begun, begun
    for unit in units:
        gathered = step.add(Kind.GATHER, unit.name, unit.gather, before)
        before, running = (
            running,
            step.add(Kind.FORWARD, unit.name, unit.forward + unit.copied_out, gathered, rooted) or running,
        )
    reducing: list[int | None] = []
    for place, unit in enumerate(reversed(units)):
        gathered = None
        # the last unit is still there
        if again and place:
            gathered = step.add(Kind.GATHER, unit.name, unit.gather, before)
        waits = reducing[-2] if len(reducing) > 1 else None
        backward = unit.backward + unit.copied_into + again * unit.copied_out
        before, running = (
            running,
            step.add(Kind.BACKWARD, unit.name, backward, gathered, waits) or running,
        )
        seconds = unit.reduce + (unit.reduce_last if last else 0.0)
        reducing.append(step.add(Kind.REDUCE, unit.name, seconds, running))
    seconds = root.reduce + (root.reduce_last if last else 0.0)
    step.add(Kind.REDUCE, root.name, seconds, running)
    return running
