"""What each segment of a watched step keeps, passes on and needs for itself, in bytes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import accumulate

from parastrat.model import Split
from parastrat.runtime.tracing.recorded import Allocation, Segment
from parastrat.runtime.tracing.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One segment's bytes for the whole micro-batch of the trace."""

    #: kept for backward
    kept: int
    #: of these, what the attention cores alone keep
    core: int
    #: kept with each repeated block under a checkpoint
    checkpointed: int
    #: kept under the per-operator policy
    selective: int
    #: beyond what all segments up to this one keep, while its forward or backward runs
    working: int
    #: of its own gradients the share that is there when its backward holds most
    meanwhile: float
    #: alive at its end and read later, with a gradient
    boundary: int
    #: after each of its events, beyond what is kept up to it: bytes, and beside them those of its gradients
    moments: tuple[tuple[int, int], ...] = ()
    #: of the parameters that it trains
    trainable: int = 0
    #: of the last segment what the model returned, which is left out above while backward runs
    output: int = 0
    #: gradients that those of its weights are made of
    awaited: int = 0


def measured(tracker: Tracker, without: Collection[Split] = ()) -> list[Measured]:
    """Return the bytes of every segment, without what tensor parallelism divides in some ways.

    What backward reads counts where it is first saved; if it was made between blocks and several of them
    save it (masks, rotary angles, an encoder's output), where it was made.
    """
    segments = tracker.segments

    def size(made: Allocation) -> int:
        return 0 if made.way in without else made.bytes

    def lasting(made: Allocation) -> int:
        """Return it with further copies, which there are where ranks have shares of positions alone."""
        again = max(len(made.regions) - 1, 0) * made.bytes
        return size(made) + (again if Split.SEQUENCE in without else 0)

    homes = {made: _home(made, segments) for made in tracker.kept}
    kept, core = [0] * len(segments), [0] * len(segments)
    for made, home in homes.items():
        kept[home] += lasting(made)
        if made.attention and made.savers.total() == 1:
            core[home] += size(made)
    inputs, shared = _block_inputs(segments, homes, size)
    moments = _moments(tracker, list(accumulate(kept)), lasting)
    trainable = [sum(tracker.trainable.get(name, 0) for name in own.parameters) for own in segments]
    working = [max((0, *(live for live, _ in own))) for own in moments]
    meanwhile = [_meanwhile(*of_segment) for of_segment in zip(moments, trainable, strict=True)]
    for index, segment in enumerate(segments):
        if segment.twin is not None:
            for numbers in (kept, core, working):
                numbers[index] = numbers[segment.twin]
            meanwhile[index], moments[index] = meanwhile[segment.twin], moments[segment.twin]
    boundary = _boundaries(tracker)
    output, last = sum(map(size, _returned(tracker))), len(segments) - 1
    # what lies behind the last weight is gone with the gradients of inputs
    behind = tracker.forward_events[tracker.behind.trained :]
    ended = sum(size(made) for _, sign, made in behind if sign > 0 and homes.get(made) == last)
    return [
        Measured(
            kept=kept[index],
            core=core[index],
            checkpointed=inputs[index] if segment.block else kept[index] + shared[index],
            selective=inputs[index]
            + sum(bytes_ for way, bytes_ in segment.selective.items() if way not in without)
            if segment.block
            else kept[index] + shared[index],
            working=working[index],
            meanwhile=meanwhile[index],
            boundary=boundary[index],
            moments=tuple(moments[index]),
            trainable=trainable[index],
            output=output if index == last else 0,
            awaited=sum(bytes_ for way, bytes_ in segment.awaited.items() if way not in without)
            - (ended if index == last else 0),
        )
        for index, segment in enumerate(segments)
    ]


def _home(made: Allocation, segments: list[Segment]) -> int:
    source = segments[made.created]
    copied = source.twin_output
    # a copy in the place of an output: if the twin keeps its output itself, so does this block
    if copied is not None and copied.kept and _home(copied, segments) == source.twin:
        return made.created
    if not made.savers:
        return made.created
    in_blocks = [index for index in made.savers if segments[index].block]
    if len(in_blocks) > 1 and not segments[made.created].block:
        return made.created
    return min(made.savers)


def _block_inputs(
    segments: list[Segment], homes: dict[Allocation, int], size: Callable[[Allocation], int]
) -> tuple[list[int], list[int]]:
    """Return each block's inputs that are kept for it alone, and what segments between make for several."""
    takers: dict[Allocation, list[int]] = {}
    for index, segment in enumerate(segments):
        for made in segment.inputs:
            if not made.constant:
                takers.setdefault(made, []).append(index)
    inputs, shared = [0] * len(segments), [0] * len(segments)
    for made, indices in takers.items():
        home = homes.get(made)
        if home is not None and not segments[home].block and home < indices[0]:
            continue  # kept there under every policy
        if len(indices) > 1 and not segments[made.created].block:
            shared[made.created] += size(made)
        else:
            inputs[indices[0]] += size(made)
    return inputs, shared


def _moments(
    tracker: Tracker, held: list[int], size: Callable[[Allocation], int]
) -> list[list[tuple[int, int]]]:
    """Return how far each segment goes beyond what is held up to its end, event by event.

    Gradients of parameters are left out of that: they stay after the step. But where each comes alone,
    those that a segment has made lie beside its last tensors; they are what stands second. What is
    held up to its end has autocast's copies of its weights, which end one by one in its backward. What the
    model returned counts for no segment once backward has begun: a pipeline's stages have none of it then.
    """
    moments: list[list[tuple[int, int]]] = [[] for _ in held]
    gradients, casts = [0] * len(held), [0] * len(held)
    live, output = 0, set(_returned(tracker))
    returned = [(len(held) - 1, -1, made) for made in _returned(tracker)]
    backward = [event for event in tracker.backward_events if event[2] not in output]
    for index, sign, made in (*tracker.forward_events, *returned, *backward):
        if made.cast and sign < 0 and made.created == index and made.savers:
            casts[index] += made.bytes
        if made.constant:
            continue
        # a sum takes the place of its first summand when that ends
        if made.gradient and sign > 0 and not made.added:
            gradients[index] += made.bytes
        else:
            live += sign * size(made)
        moments[index].append((live - held[index] - casts[index], gradients[index]))
    return moments


def _returned(tracker: Tracker) -> list[Allocation]:
    """Return what the model returned, if it may be apart from what runs: one segment is no pipeline's."""
    return tracker.behind.output if len(tracker.segments) > 1 else []


def _meanwhile(moments: list[tuple[int, int]], trainable: int) -> float:
    """Return which share of a segment's gradients lies beside the most that it holds."""
    most = max((0, *(live for live, _ in moments)))
    beside = max((0, *(live + own for live, own in moments)))
    return min((beside - most) / max(trainable, 1), 1.0)


def _boundaries(tracker: Tracker) -> list[int]:
    """Return the bytes of tensors that are made up to each segment and read after it.

    What has no gradient each stage makes itself, but for what blocks return (T5's zeros for biases).
    """
    steps = [0] * (len(tracker.segments) + 1)
    for made in tracker.allocations:
        crosses = made.differentiable or bool(tracker.segments[made.created].block)
        if crosses and not made.constant and made.last_used > made.created:
            steps[made.created] += made.bytes
            steps[made.last_used] -= made.bytes
    return list(accumulate(steps))[:-1]
