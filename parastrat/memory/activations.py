"""What activations take on a rank: what is kept for backward, and what exists while a block runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.remembered import remembered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from parastrat.columns import Columns
    from parastrat.model import Block, Saved
    from parastrat.units import Bytes, Numbers

#: what decides the activations of one micro-batch on a rank
SAVED_BY = (
    "pp",
    "virtual_stages",
    "micro_batch_size",
    "cp",
    "tp",
    "sequence_parallel",
    "loss_parallel",
    "recompute",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTable:
    """Bytes for one sample by what divides them, as ``Saved``, with a row for each of several blocks."""

    replicated: Any
    tensor: Any
    sequence: Any
    loss: Any


def saved_table(several: Sequence[Saved]) -> SavedTable:
    """Return several blocks' bytes as columns beside those of plans."""
    table = np.array(
        [(saved.replicated, saved.tensor, saved.sequence, saved.loss) for saved in several], dtype=float
    )
    replicated, tensor, sequence, loss = table.T[..., None]
    return SavedTable(replicated=replicated, tensor=tensor, sequence=sequence, loss=loss)


def saved_bytes(saved: Saved | SavedTable, c: Columns) -> Bytes:
    """Return one micro-batch's bytes on one rank of activations given for one sample."""
    sequence, loss = (np.where(parallel, c.tp, 1) for parallel in (c.sequence_parallel, c.loss_parallel))
    per_sample = saved.replicated + saved.tensor / c.tp + saved.sequence / sequence + saved.loss / loss
    return per_sample * c.micro_batch_size / c.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationTable:
    """What each of several blocks keeps for backward, and what exists while that runs, for one sample."""

    #: by recompute policy, in the last axis
    kept: SavedTable
    everything: SavedTable
    working: SavedTable
    #: more of a parallel loss, by what tp divides
    of_loss: Any


@remembered
def activation_table(blocks: tuple[Block, ...]) -> ActivationTable:
    """Return the activations of some blocks."""
    by_policy = [saved_table([block.activations.under(policy) for block in blocks]) for policy in Recompute]

    def joined(name: str) -> Any:
        return np.concatenate([getattr(table, name) for table in by_policy], axis=1)

    return ActivationTable(
        kept=SavedTable(**{name: joined(name) for name in ("replicated", "tensor", "sequence", "loss")}),
        everything=by_policy[list(Recompute).index(Recompute.NONE)],
        working=saved_table([block.working for block in blocks]),
        of_loss=np.array([[block.loss_parallel_bytes] for block in blocks]),
    )


def kept_bytes(blocks: tuple[Block, ...], c: Columns) -> Bytes:
    """Return what one repeat of each block keeps for backward under each plan's recompute policy."""
    table, own = activation_table(blocks).kept, np.atleast_1d(c.recompute)
    saved = SavedTable(
        replicated=table.replicated[:, own],
        tensor=table.tensor[:, own],
        sequence=table.sequence[:, own],
        loss=table.loss[:, own],
    )
    return saved_bytes(saved, c)


def running_bytes(blocks: tuple[Block, ...], kept: Bytes, c: Columns) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was recomputed."""
    table = activation_table(blocks)
    everything, working = saved_bytes(table.everything, c), saved_bytes(table.working, c)
    of_loss = table.of_loss * c.micro_batch_size / c.cp / c.tp
    return working + np.where(c.loss_parallel, of_loss, 0.0) + np.maximum(everything - kept, 0)


def in_flight(c: Columns, rank: Numbers) -> Numbers:
    """Return the micro-batches whose activations a pipeline rank holds at its peak.

    GPipe and LoopedBFS hold all; 1F1B as many as there are ranks behind; interleaved chunks as in
    Megatron-LM's schedule; the V schedules about as many as there are ranks.
    """
    steps, behind = c.gradient_accumulation_steps, c.pp - rank
    interleaved = PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE
    ways: dict[tuple[PipelineSchedule, ...], Callable[[], Numbers]] = {
        (PipelineSchedule.ONE_F_ONE_B,): lambda: behind,
        interleaved: lambda: (2 * (behind - 1) + (c.virtual_stages - 1) * c.pp + 1) / c.virtual_stages,
        (PipelineSchedule.ZBV, PipelineSchedule.DUAL_PIPE_V): lambda: c.pp,
    }
    held = steps
    for names, count in ways.items():
        chosen = _any_of(c.pp_schedule, names)
        if chosen.any():
            held = np.where(chosen, np.minimum(count(), steps), held)
    return np.where(c.pp > 1, held, 1)


def _any_of(schedules: Numbers, names: Sequence[PipelineSchedule]) -> Any:
    return np.logical_or.reduce([schedules == code_of(name) for name in names])
