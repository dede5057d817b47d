"""What ran, as a chain of blocks: light stretches joined to their neighbours, equal neighbours counted."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

from parastrat.memory.kinds import cast_moments
from parastrat.model import Block
from parastrat.moments import Busy
from parastrat.runtime.tracing.moments import most_of
from parastrat.runtime.tracing.samples import larger_of
from parastrat.saved import Activations, Saved

#: bytes of a gradient's element; which moments hold most hangs little on it
_FP32 = 4


def merged(drafts: list[Block]) -> tuple[Block, ...]:
    """Drop what is empty, join what runs behind a block to it, and count equal neighbours."""
    chain: list[Block] = []
    last = len(drafts) - 1
    for index, draft in enumerate(drafts):
        outside = not draft.unit
        if outside and index not in (0, last) and not draft.parameters:
            if draft.operators or draft.activations.none.total:
                chain[-1] = _joined(chain[-1], draft)
            continue
        held = draft.activations.none.total or draft.output.total
        if outside and not (draft.operators or draft.parameters or held):
            continue
        chain.append(replace(draft, name=_outside_name(index, last)) if outside else draft)
    return tuple(_repeated(list(run)) for _, run in groupby(chain, key=_kind_of))


def _kind_of(block: Block) -> Block:
    """Return what equal neighbours have in common."""
    cast = block.autocast and replace(block.autocast, working=Saved(), busy=())
    return replace(block, name="", working=Saved(), meanwhile=None, busy=(), autocast=cast)


def _outside_name(index: int, last: int) -> str:
    if last == 0:
        return "model"
    return {0: "before the blocks", last: "after the blocks"}.get(index, "between the blocks")


def _joined(block: Block, behind: Block) -> Block:
    """Return a block with what runs behind it, which no policy recomputes."""
    # none of the block's gradients is there yet
    both = [block, replace(behind, meanwhile=0.0)]
    cast = None
    if block.autocast and behind.autocast:
        cast = replace(
            block.autocast,
            activations=_with(block.autocast.activations, behind.autocast.activations.none),
            working=larger_of([block.autocast.working, behind.autocast.working]),
            busy=_moments_of(both, [cast_moments(each) for each in both]),
            boundary_bytes=behind.autocast.boundary_bytes,
            boundary_fixed=behind.autocast.boundary_fixed,
            awaited=block.autocast.awaited + behind.autocast.awaited,
        )
    return replace(
        block,
        operators=(*block.operators, *behind.operators),
        activations=_with(block.activations, behind.activations.none),
        working=larger_of([block.working, behind.working]),
        busy=_moments_of(both, [each.moments for each in both]),
        boundary_bytes=behind.boundary_bytes,
        boundary_fixed=behind.boundary_fixed,
        awaited=block.awaited + behind.awaited,
        autocast=cast,
    )


def _with(activations: Activations, kept: Saved) -> Activations:
    """Return what is kept with what no policy recomputes."""
    return Activations(
        none=activations.none + kept,
        attention=activations.attention + kept,
        selective=activations.selective + kept,
        full=activations.full + kept,
    )


def _repeated(run: list[Block]) -> Block:
    name = run[0].name if len(run) == 1 else f"{run[0].name} to {run[-1].name}"
    working = larger_of([block.working for block in run])
    meanwhile = max(block.meanwhile or 0.0 for block in run)
    casts = [block.autocast for block in run if block.autocast]
    cast = casts[0] if casts else None
    if cast is not None:
        cast = replace(
            cast,
            working=larger_of([each.working for each in casts]),
            busy=_moments_of(run, [cast_moments(block) for block in run]),
        )
    return replace(
        run[0],
        name=name,
        repeat=len(run),
        working=working,
        meanwhile=meanwhile,
        busy=_moments_of(run, [block.moments for block in run]),
        autocast=cast,
    )


def _moments_of(blocks: list[Block], moments: list[tuple[Busy, ...]]) -> tuple[Busy, ...]:
    """Return the moments of several blocks at which one of them holds most; none where each has but one."""
    if all(len(own) == 1 for own in moments):
        return ()
    every = [moment for own in moments for moment in own]
    trained = sum(group.trainable for group in blocks[0].parameters)
    return most_of(every, trained * _FP32)
