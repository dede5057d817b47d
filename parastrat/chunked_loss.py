"""Closed form of a head whose loss reads the logits of some tokens at a time (``chunked_cross_entropy``).

Each chunk's logits are made in forward, let go of, and made again in backward. What lives meanwhile was
seen operator by operator on torch 2.13; tests hold it against dry runs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parastrat.errors import ModelError
from parastrat.model import Family, OperatorKind
from parastrat.moments import Busy
from parastrat.remembered import remembered
from parastrat.saved import Activations, Saved

if TYPE_CHECKING:
    from parastrat.model import Autocast, Block, ModelSpec, Operator

#: with as many torchtune's losses divide the tokens where nothing else is said
USUAL_CHUNKS = 8


def has_whole_logits(model: ModelSpec) -> bool:
    """Return whether a model's loss reads the logits of one closed form's head, all at once."""
    *others, head = model.blocks
    elsewhere = any(_logits(block) for block in others)
    alone = head.chunks == 1 and not elsewhere and head.added is not None
    return model.family is Family.DECODER and not model.dispatched and _logits(head) > 0 and alone


def in_chunks(model: ModelSpec, chunks: int) -> ModelSpec:
    """Return a model whose loss makes the logits of so many parts of the tokens one after another.

    Raises:
        ModelError: there is no closed form of its head, or more than one block has logits.
    """
    if chunks == 1:
        return model
    if not has_whole_logits(model):
        raise ModelError(
            f"{model.ref}: a loss in chunks is estimated for decoders that are known by their sizes",
            hint="leave --loss-chunks out; a module that computes such a loss itself is traced as it is",
        )
    known = _divided(model)
    if chunks not in known:
        *others, head = model.blocks
        known[chunks] = replace(model, blocks=(*others, _chunked(head, model, chunks)))
    return known[chunks]


@remembered
def _divided(_: ModelSpec) -> dict[int, ModelSpec]:
    """Return a model by the number of chunks, which is filled as they are asked for."""
    return {}


def _logits(block: Block) -> float:
    return block.activations.none.loss + block.working.loss


def _chunked(head: Block, model: ModelSpec, chunks: int) -> Block:
    element = model.precision.compute_bytes
    weight = Saved(fixed=element * (head.added.count if head.added else 0))
    cast = head.autocast
    return replace(
        head,
        operators=tuple(_in_turn(operator, chunks) for operator in head.operators),
        **_held(head, head, weight, chunks),
        # a sum of chunks' gradients is what is added to those of micro-batches before
        beside_added=replace(head.beside_added, loss=0) + weight.times(2),
        output=Saved(),
        loss_parallel_bytes=head.loss_parallel_bytes / chunks,
        remade=1.0,
        chunks=chunks,
        autocast=cast
        and replace(
            cast,
            **_held(cast, head, weight, chunks),
            # and under autocast the gradient of the short copy, of which that is made
            beside_added=replace(cast.beside_added, loss=0) + weight,
        ),
    )


def _held(own: Block | Autocast, head: Block, weight: Saved, chunks: int) -> dict[str, Any]:
    """Return what a head holds in chunks.

    Its backward may hold most at three moments: as the loss makes the gradient of a chunk's logits, beside
    the sum of the weight's gradients so far; as one more of these comes; and as they are added up, in a
    tensor of its own. Gradients of the tokens come chunk by chunk. Under autocast the tokens are kept as
    they are, and the product's short copies are a chunk's.
    """
    logits = _logits(head)
    short, given = Saved(sequence=own.beside_added.sequence), Saved(sequence=own.awaited.sequence)
    copied = short if short != given else Saved()
    moments = (
        (copied + Saved(loss=logits)).times(1 / chunks) + weight + given.times(1 - 1 / chunks),
        Saved(loss=head.output.loss / chunks) + weight.times(2) + given,
        weight.times(3) + given,
    )
    return {
        "activations": _kept(own.activations, given + short.times(-1)),
        "working": moments[0],
        "busy": tuple(Busy(working=working, meanwhile=0.0) for working in moments),
        "awaited": replace(own.awaited, loss=0),
    }


def _kept(whole: Activations, more: Saved) -> Activations:
    """Return what is kept under every policy, without the logits; None stays where it is not known."""
    ways = {name: getattr(whole, name) for name in Activations.__dataclass_fields__}
    return Activations(**{name: way and replace(way, loss=0) + more for name, way in ways.items()})


def _in_turn(operator: Operator, chunks: int) -> Operator:
    """Return an operator of a head in as many passes over as many fewer rows."""
    return replace(
        operator,
        flops=operator.flops / chunks,
        bytes=operator.bytes / chunks,
        m=max(operator.m // chunks, 1) if operator.kind is OperatorKind.MATMUL else operator.m,
        count=operator.count * chunks,
    )
