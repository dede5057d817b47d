"""What exists on a rank while a block runs, beside what is kept for backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.memory.activations import activation_table, autocasts, heads, saved_bytes, under
from parastrat.memory.gathered import shards_parameters
from parastrat.ranks import block_kinds
from parastrat.ranks.states import element_bytes, local_total, trainable_totals, vocabulary_tp

if TYPE_CHECKING:
    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks.kinds import Kinds
    from parastrat.units import Bytes

#: of a weight that tp ranks gather along its columns: as it comes, and put together
_GATHERED_COPIES = 2


def running_bytes(facts: Facts, kept: Bytes, everything: Bytes, c: Columns) -> Bytes:
    """Return what exists while one repeat's backward runs: working tensors and what was recomputed.

    And the model's output, as long as backward takes. A pipeline's last stage hands out its loss, and what
    the model returned is gone then; Megatron's keeps no output either (``Saved()`` in its blocks).

    Args:
        facts: the job.
        kept: what ``kept_bytes`` returns.
        everything: what ``everything_bytes`` returns.
        c: the plans.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    made = _working_bytes(facts, c) + everything - kept
    if table.regathered.any():
        # where attention runs, what stands behind it is gone; of units its gradients are there
        made = made + np.where(shards_parameters(c), 0.0, np.maximum(-freed_bytes(facts, c), 0.0))
    if table.tied.any() and not facts.stack.kernels.fused:
        sums = table.tied & (c.pp == 1) & ~shards_parameters(c)
        made = np.where(sums, np.maximum(made, adding_bytes(facts, kept, everything, c, new=0)), made)
    output = np.where(c.pp == 1, saved_bytes(table.output, c).sum(axis=0), 0.0)
    of_loss = facts.stack.parallel_loss_tensors * table.of_loss * c.micro_batch_size / c.cp / c.tp
    whole = c.loss_parallel & (vocabulary_tp(c) < c.tp) if np.any(c.loss_parallel) else False
    return made + output + np.where(c.loss_parallel & ~np.asarray(whole), of_loss, 0.0)


def _working_bytes(facts: Facts, c: Columns) -> Bytes:
    """Return what exists while one repeat runs, at its moment of most.

    Where gradients come one by one, with those that are there by then and not at all such moments.
    """
    kinds = block_kinds(facts.model)
    table = activation_table(kinds.blocks)
    if not table.busy:
        return saved_bytes(under(table.working, autocasts(c).astype(np.int64)), c, facts)
    coming: Bytes = np.zeros((1, 1))
    if c.has("singly"):
        own = element_bytes(facts).gradient * local_total(trainable_totals(kinds), c)
        coming = own * np.where(c.singly, 1.0, 0.0)
    least = soonest(kinds)
    way = autocasts(c).astype(np.int64)
    moments = [
        saved_bytes(under(working, way), c, facts) + (share.take(way, axis=1) - least) * coming
        for working, share in table.busy
    ]
    return np.maximum.reduce(np.broadcast_arrays(*moments))


def soonest(kinds: Kinds) -> Any:
    """Return of each kind of block the share of its gradients that is there whenever it may hold most."""
    return np.array([[min(each.meanwhile for each in block.moments)] for block in kinds.blocks])


def adding_bytes(facts: Facts, kept: Bytes, everything: Bytes, c: Columns, new: int = 1) -> Bytes:
    """Return what exists as the largest gradient of one repeat is added to that of a micro-batch before.

    Where autocast made the weight a short copy, that one's gradient has taken its place. Of a tied weight
    two more are there: the later block's waits for the earlier one's, and their sum is one more.

    Args:
        facts: the job.
        kept: what ``kept_bytes`` returns.
        everything: what ``everything_bytes`` returns.
        c: the plans.
        new: gradients beside the weight's own; a first micro-batch adds to none.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    several = new + 2 * table.tied * (c.pp == 1)
    gradients = several * element_bytes(facts).gradient * local_total(table.added, c)
    beside = under(table.beside_added, autocasts(c).astype(np.int64))
    return gradients + saved_bytes(beside, c, facts) + everything - kept


def freed_bytes(facts: Facts, c: Columns) -> Bytes:
    """Return what is gone halfway through the backward of one repeat of each kind of block.

    Less what tp ranks gather then, of weights that are stored across the stretches that each of them takes.
    """
    table, element = activation_table(block_kinds(facts.model).blocks), element_bytes(facts)
    freed = saved_bytes(table.freed, c, facts)
    if not table.regathered.any():
        return freed
    of_weight = np.where(shards_parameters(c), element.compute, element.parameter)
    return freed - np.where(c.tp > 1, _GATHERED_COPIES * of_weight * table.regathered, 0.0)


def loss_bytes(facts: Facts, running: Bytes, c: Columns) -> Bytes:
    """Return what of running bytes is there when a forward ends, of each kind of block: of a head the loss.

    One tensor fewer than backward makes; in parallel as many. Models that are given their targets compute
    the loss in their forward.
    """
    table = activation_table(block_kinds(facts.model).blocks)
    more = np.where(c.loss_parallel, 0.0, table.of_loss * c.micro_batch_size / c.cp)
    # what a stage returned is there up to its loss
    output = np.where(c.pp > 1, saved_bytes(table.output, c), 0.0)
    return np.where(heads(facts), running - more + output, 0.0)
