"""Seconds in which weights and gradients are copied, in the stream that computes.

What FSDP2 gathers comes as one buffer, shard after shard, and is copied into the weights of a unit;
gradients are copied into the buffer that is reduced, in its format. Stacks of experts that are sharded
along their rows are copied once more both ways (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py,
``foreach_all_gather_copy_out``, ``foreach_reduce`` and ``foreach_reduce_scatter_copy_in``; torch 2.13).
Without it autocast casts fp32 weights as a forward reads them, and backward their gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from parastrat.columns import code_of
from parastrat.cost.data_parallel import gathered_element_bytes
from parastrat.elementwise import where
from parastrat.plan import Recompute, Shard
from parastrat.ranks import block_kinds
from parastrat.ranks.division import along_rows, division, local, local_total
from parastrat.ranks.states import element_bytes
from parastrat.ranks.totals import casts_of_kinds, held_totals, trainable_totals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.ranks import RankLoad
    from parastrat.ranks.load import ParameterTotals
    from parastrat.stack import Stack
    from parastrat.units import Numbers, Seconds


class CopySeconds(NamedTuple):
    """What is copied with one gathering, and with one reduction."""

    out: Seconds
    into: Seconds


class CastSeconds(NamedTuple):
    """What is cast in a forward, and in its backward."""

    weights: Seconds
    gradients: Seconds


def copies_s(facts: Facts, c: Columns, load: RankLoad) -> CopySeconds | None:
    """Return what copies of a rank's parameters and gradients take; None where stacks gather otherwise.

    FSDP1 gathers into the one tensor that a unit's weights are views of, a compiled graph each weight by
    itself.
    """
    if not _copies(facts.stack):
        return None
    return _copied(facts, c, (load.trainable, load.frozen), load.trainable)


def copies_of_kinds(facts: Facts, c: Columns) -> CopySeconds | None:
    """Return what ``copies_s`` does of one repeat of each kind of block, kinds before plans."""
    if not _copies(facts.stack):
        return None
    kinds = block_kinds(facts.model)
    return _copied(facts, c, (held_totals(kinds),), trainable_totals(kinds))


def _copies(stack: Stack) -> bool:
    return stack.dtensors and not stack.gathers_in_graph


def _copied(
    facts: Facts, c: Columns, held: tuple[ParameterTotals, ...], trained: ParameterTotals
) -> CopySeconds:
    """Return what they take of all parameters that are held, and of those that are trained."""
    element, fsdp = element_bytes(facts), c.shard == code_of(Shard.PARAMETERS)
    rate, twice = _bytes_per_s(facts), along_rows(facts.model.experts, c.ep, division(c))

    def copied(totals: ParameterTotals, once: float, again: float) -> Numbers:
        dense, experts = local(totals, c)
        return dense * once + experts * where(twice, once + again, once)

    # read and written, in the format of each
    gathered = 2 * gathered_element_bytes(facts)
    out = sum(copied(each, gathered, gathered) for each in held)
    into = copied(trained, element.compute + element.reduce, 2 * element.compute)
    return CopySeconds(fsdp * out / rate, fsdp * into / rate)


def _bytes_per_s(facts: Facts) -> float:
    return facts.hardware.device.memory_bytes_per_s / facts.stack.elementwise_factor


def autocast_s(facts: Facts, c: Columns) -> CastSeconds | None:
    """Return what autocast's casts take of one repeat of each kind of block, kinds before plans.

    None where weights are not kept in fp32. FSDP2 casts the shards that it gathers.
    """
    element = element_bytes(facts)
    if not element.cast:
        return None
    moved = (c.shard != code_of(Shard.PARAMETERS)) * (element.parameter + element.cast)
    each = moved / _bytes_per_s(facts)
    weights, gradients = casts_of_kinds(block_kinds(facts.model))
    return CastSeconds(local_total(weights, c) * each, local_total(gradients, c) * each)


def with_casts(c: Columns, work: Mapping[str, Any], casts: CastSeconds) -> dict[str, Any]:
    """Return the seconds of a micro-batch's work with casts, which full recompute makes again."""
    again = (c.recompute == code_of(Recompute.FULL)) * casts.weights
    return {
        **work,
        "compute": work["compute"] + casts.weights + casts.gradients + again,
        "forward": work["forward"] + casts.weights,
        "backward": work["backward"] + casts.gradients + again,
        "weights": work["weights"] + casts.gradients,
    }
