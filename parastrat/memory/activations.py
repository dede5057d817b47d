"""What activations take on a rank: what is kept for backward, and what exists while a block runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of, derived, derived_with
from parastrat.memory.gathered import shards_parameters
from parastrat.model import Busy, OperatorKind
from parastrat.plan import Recompute
from parastrat.ranks import block_kinds
from parastrat.ranks.load import ParameterTotals
from parastrat.ranks.states import (
    added_totals,
    cast_totals,
    element_bytes,
    expert_tp,
    local_total,
    totals_table,
    vocabulary_tp,
)
from parastrat.remembered import remembered
from parastrat.saved import Saved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.model import Autocast, Block
    from parastrat.units import Bytes, Numbers

#: what decides the activations of one micro-batch on a rank
SAVED_BY = (
    "pp",
    "virtual_stages",
    # where it bends the chain
    "pp_schedule",
    "micro_batch_size",
    "cp",
    "tp",
    # casts of experts' weights
    "ep",
    "sequence_parallel",
    "loss_parallel",
    "recompute",
    "shard",
)
_POLICIES = len(Recompute)
#: fields of ``Saved``
_WAYS = ("replicated", "tensor", "sequence", "expert", "loss", "fixed")
#: under which autograd keeps what autocast makes of weights
_KEEPING_CASTS = Recompute.NONE, Recompute.ATTENTION
#: operators whose weights autocast casts
_PRODUCTS = (
    OperatorKind.MATMUL,
    OperatorKind.GROUPED_MATMUL,
    OperatorKind.CONVOLUTION,
    OperatorKind.RECURRENT,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTable:
    """Bytes for one sample by what divides them, as ``Saved``, with a row for each of several blocks.

    None of what no block has.
    """

    replicated: Any
    tensor: Any = None
    sequence: Any = None
    expert: Any = None
    loss: Any = None
    fixed: Any = None


def saved_table(ways: Sequence[Sequence[Saved]]) -> SavedTable:
    """Return several blocks' bytes in each of some ways, as columns beside those of plans."""
    table = np.array(
        [[[getattr(saved, name) for saved in way] for way in ways] for name in _WAYS], dtype=float
    )
    named = zip(_WAYS, table.transpose(0, 2, 1), strict=True)
    return SavedTable(**{name: own for name, own in named if name == "replicated" or own.any()})


def saved_bytes(saved: Saved | SavedTable, c: Columns, facts: Facts | None = None) -> Bytes:
    """Return one micro-batch's bytes on one rank of activations given for one sample.

    ``facts``: of the job whose kinds of block these are; None where sequence parallelism divides any.
    """
    per_sample: Any = saved.replicated
    if saved.tensor is not None:
        per_sample = per_sample + (saved.tensor / c.tp + _of_experts(saved, c))
    elif saved.expert is not None:
        per_sample = per_sample + _of_experts(saved, c)
    if saved.sequence is not None:
        per_sample = per_sample + saved.sequence / _sequence_ranks(facts, c)
    if saved.loss is not None:
        per_sample = per_sample + saved.loss / _loss_ranks(c)
    bytes_: Bytes = per_sample * c.micro_batch_size / c.cp
    return bytes_ if saved.fixed is None else bytes_ + saved.fixed


def _of_experts(saved: Saved | SavedTable, c: Columns) -> Bytes:
    return 0 if saved.expert is None else saved.expert / expert_tp(c)


@derived_with
def _sequence_ranks(facts: Facts | None, c: Columns) -> Numbers:
    """Return over how many ranks sequence parallelism divides, of each kind of block if there is a job."""
    divided = np.equal(c.sequence_parallel, 1)
    return np.where(divided if facts is None else divided & ~sees_whole(facts, c), c.tp, 1)


@derived
def _loss_ranks(c: Columns) -> Numbers:
    # without tp the vocabulary need not be known
    return np.where(c.loss_parallel, vocabulary_tp(c), 1) if np.any(c.loss_parallel) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTable:
    """What each of several blocks keeps for backward, and what exists while that runs, for one sample."""

    #: by recompute policy, in the last axis; all of them again under autocast
    kept: SavedTable
    #: without and under autocast, in the last axis
    working: SavedTable
    #: in place of the former at each of several moments of a block, with the share of its gradients; both
    #: without and under autocast, and none where no block has several
    busy: tuple[tuple[SavedTable, Any], ...]
    #: without and under autocast as well; what a backward of inputs alone leaves to that of the weights
    awaited: SavedTable
    #: weights whose gradients are added up, and what lies beside a new one, in two formats as well
    added: ParameterTotals
    beside_added: SavedTable
    #: where such a weight is a later block's as well
    tied: Any
    #: what is gone halfway through a unit's backward
    freed: SavedTable
    #: of the model's output what a training script holds
    output: SavedTable
    #: one more tensor of a parallel loss, by what tp divides
    of_loss: Any
    #: parameters that tp ranks gather
    regathered: Any
    #: parameters that autocast casts, of one repeat
    cast: ParameterTotals
    #: which blocks a recompute policy is for
    units: Any


@remembered
def activation_table(blocks: tuple[Block, ...]) -> ActivationTable:
    """Return the activations of some blocks."""
    ways: tuple[list[Block | Autocast], ...] = list(blocks), [block.autocast or block for block in blocks]
    multiply = [any(each.kind in _PRODUCTS for each in block.operators) for block in blocks]
    return ActivationTable(
        kept=saved_table(
            [[each.activations.under(policy) for each in way] for way in ways for policy in Recompute]
        ),
        working=saved_table([[each.working for each in way] for way in ways]),
        busy=_busy_tables(blocks),
        awaited=saved_table([[each.awaited for each in way] for way in ways]),
        added=totals_table([added_totals(block) for block in blocks]),
        beside_added=saved_table([[each.beside_added for each in way] for way in ways]),
        tied=np.array([[_is_tied(block, blocks[place + 1 :])] for place, block in enumerate(blocks)]),
        freed=saved_table([[block.halfway.freed if block.halfway else Saved() for block in blocks]]),
        output=saved_table([[block.output for block in blocks]]),
        of_loss=np.array([[block.loss_parallel_bytes] for block in blocks]),
        regathered=np.array([[block.regathered] for block in blocks]),
        cast=totals_table(
            [
                cast_totals(block) if own else ParameterTotals()
                for block, own in zip(blocks, multiply, strict=True)
            ]
        ),
        units=np.array([[block.unit] for block in blocks]),
    )


def _busy_tables(blocks: Sequence[Block]) -> tuple[tuple[SavedTable, Any], ...]:
    """Return the moments of blocks; one with fewer than another has its last one several times."""
    if not has_moments(blocks):
        return ()
    ways = [block.moments for block in blocks], [cast_moments(block) for block in blocks]
    many = max(len(own) for way in ways for own in way)
    several = [[[own[min(place, len(own) - 1)] for own in way] for way in ways] for place in range(many)]
    return tuple(
        (
            saved_table([[moment.working for moment in way] for way in moments]),
            np.array([[moment.meanwhile for moment in way] for way in moments]).T,
        )
        for moments in several
    )


def cast_moments(block: Block) -> tuple[Busy, ...]:
    """Return the moments at which a block may hold most under autocast."""
    own = block.autocast or block
    return own.busy or (Busy(working=own.working, meanwhile=block.meanwhile or 0.0),)


def has_moments(blocks: Sequence[Block]) -> bool:
    """Return whether any block holds most at several moments, in one format or under autocast."""
    return any(block.busy or (block.autocast and block.autocast.busy) for block in blocks)


def _is_tied(block: Block, others: Sequence[Block]) -> bool:
    tie = None if block.added is None else block.added.tie_group
    return tie is not None and any(group.tie_group == tie for each in others for group in each.parameters)


@derived
def autocasts(c: Columns) -> Any:
    """Return where autocast casts what products read; FSDP2 casts weights as it gathers them."""
    return ~np.atleast_1d(shards_parameters(c))


@derived_with
def cast_bytes(facts: Facts, c: Columns) -> Bytes:
    """Return the short copies that autocast makes of one repeat's weights, of each kind of block."""
    of_element = element_bytes(facts).cast
    if not of_element:
        return np.zeros((len(block_kinds(facts.model).blocks), 1))
    casts = local_total(activation_table(block_kinds(facts.model).blocks).cast, c)
    return np.where(autocasts(c), of_element * casts, 0.0)


def kept_bytes(facts: Facts, c: Columns) -> Bytes:
    """Return what one repeat of each kind of block keeps for backward under each plan's recompute policy.

    Under autocast that is also the short copies of its weights, one for each micro-batch, unless they are
    made again with the block: the casts that a context remembers end with the forward.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    own = np.atleast_1d(c.recompute) + _POLICIES * autocasts(c)
    kept = saved_bytes(under(table.kept, own), c, facts)
    return kept + keeps_casts(facts, c) * cast_bytes(facts, c)


@derived_with
def keeps_casts(facts: Facts, c: Columns) -> Any:
    """Return which kinds of block keep the casts of their weights, as no policy makes them again."""
    units = activation_table(block_kinds(facts.model).blocks).units
    return ~units | is_any_of(c.recompute, _KEEPING_CASTS)


def under(table: SavedTable, own: Any) -> SavedTable:
    """Return the bytes at the chosen places of the last axis, one for each plan."""
    ways = ((name, getattr(table, name)) for name in _WAYS)
    return SavedTable(**{name: bytes_.take(own, axis=1) for name, bytes_ in ways if bytes_ is not None})


@derived_with
def sees_whole(facts: Facts, c: Columns) -> Any:
    """Return which kinds of block see whole sequences: tensors cross whole between stages of our pipelines.

    Only inside of units are they divided then; and nowhere in a model with dropout, which would have to
    differ along the sequence. Megatron's stages send shares, and it draws for each; so do torchtitan's.
    """
    units = activation_table(block_kinds(facts.model).blocks).units
    crosses_whole = (c.pp > 1) & (not facts.stack.crosses_divided)
    return (~units & crosses_whole | bool(facts.model.drops)) & (not facts.stack.kernels.fused)


def everything_bytes(facts: Facts, kept: Bytes, c: Columns) -> Bytes:
    """Return what backward reads of one repeat of each kind of block, kept or made again."""
    table = activation_table(block_kinds(facts.model).blocks)
    every = under(table.kept, code_of(Recompute.NONE) + _POLICIES * autocasts(c))
    return np.maximum(saved_bytes(every, c, facts) + cast_bytes(facts, c), kept)


def heads(facts: Facts) -> Any:
    """Return which kinds of block are heads of a closed form; a trace does not tell them apart."""
    of_loss = activation_table(block_kinds(facts.model).blocks).of_loss
    return (of_loss > 0) & (not facts.model.dispatched)
