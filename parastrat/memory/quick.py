"""What plans hold at least as their backward begins, told by one rank of a pipeline alone (``foremost``).

It holds its states then, what all micro-batches in flight keep, and what its last block makes as it runs.
That is worked out for each pipeline and width, so that rows of plans take a tenth of the time of
``floors.memory_floor``, which looks at several ranks' blocks, and is no lower.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.distinct import NUMBERED, distinct
from parastrat.elementwise import smaller
from parastrat.memory.crossing import formats_of
from parastrat.memory.foremost import (
    AT_HEAD,
    AT_UNITS,
    KEPT,
    VARIANTS,
    WAYS,
    blocks_of,
    rank_of,
    told_of,
)
from parastrat.memory.gathered import shards_parameters
from parastrat.memory.plans import job_of, shares_of
from parastrat.plan import PipelineSchedule
from parastrat.ranks.division import divided, divided_total, division, division_of
from parastrat.ranks.load import load_of, whole_model
from parastrat.ranks.states import of_elements, states_of
from parastrat.schedules import SPLIT_ALWAYS, V_SHAPED
from parastrat.stack import Crossing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.memory.kinds import Kind
    from parastrat.memory.plans import Job
    from parastrat.plan import Recompute
    from parastrat.ranks.load import RankLoad
    from parastrat.units import Bytes, Mask

_SPLIT, _BENT = tuple(SPLIT_ALWAYS), tuple(V_SHAPED)
_TURNING = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, *V_SHAPED)


def quick_floor(facts: Facts, c: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what ``memory_floor`` does, or less.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    if not len(c.pp):
        return np.empty((len(policies), 0))
    job = job_of(facts)
    (widths, width), (table, at) = distinct(c, NUMBERED["width"]), job.pipelines.table(c)
    places = np.flatnonzero(np.bincount(at))
    which = np.zeros(len(table.counts), dtype=np.int64)
    which[places] = [rank_of(job, place) for place in places.tolist()]
    load = load_of(job.pipelines, table.numbers.take((table.firsts + which).take(at), axis=-1))
    piped, steps, shards = c.pp > 1, c.gradient_accumulation_steps, shards_parameters(c)
    turns = piped & (c.virtual_stages > 1) & is_any_of(c.pp_schedule, _TURNING)
    ways = turns * (1 + 2 * is_any_of(c.pp_schedule, _SPLIT) + 4 * (steps <= c.pp))
    codes = (at * WAYS + ways) * VARIANTS + 2 * piped + ~shards
    kept, head, unit = _activations(job, (codes, widths, width), c.micro_batch_size, policies)
    # of chunks no more than twice as many are in flight
    late = steps <= np.where(turns, 2 * c.pp, c.pp)
    under = _under_pipelines(job, c, load, late=late)
    pool, at_head, at_unit = (part.take(width) for part in _gathered(job, widths))
    gathers = _gathers(c, shards)
    base = _stays(job, c, load) + np.where(gathers & ~piped, pool, 0.0)
    head = head + _loss_in_parallel(job, widths).take(width) * np.where(piped, 0, c.micro_batch_size)
    head = head + np.where(gathers, np.where(piped, under, at_head), 0.0)
    unit = unit + np.where(gathers, np.where(piped, under, at_unit), 0.0)
    flying = np.where(piped & ~turns, smaller(c.pp - load.rank, steps), 1)
    return base + job.share * (kept * flying + np.maximum(head, unit) + _received(job, c, load.rank))


def _activations(
    job: Job, kinds: tuple[Any, Columns, Any], samples: Any, policies: Sequence[Recompute]
) -> tuple[Bytes, Bytes, Bytes]:
    """Return what rows keep, and what exists beside it as a head runs, and a unit: policies before rows.

    Args:
        job: the job.
        kinds: the codes of the rows' ranks, the widths that occur, and which of them each row has.
        samples: of a micro-batch.
        policies: that are looked at.
    """
    codes, widths, width = kinds
    found = np.flatnonzero(np.bincount(codes))
    place = np.zeros(int(found[-1]) + 1, dtype=np.int64)
    place[found] = np.arange(len(found))
    code, own = place.take(codes), [code_of(policy) for policy in policies]
    # codes before moments before policies before parts
    held = np.array([told_of(job, each)[:, own] for each in found.tolist()])
    one = widths.joined({"micro_batch_size": 1})
    shares = np.array(np.broadcast_arrays(*shares_of(one, division_of(one))), dtype=float)
    of_samples, fixed = held[..., :-1] @ shares, held[..., -1]
    pair = code * len(widths.pp) + width
    parts = _by_moments(of_samples)
    # policies before codes with each width
    several = [part.swapaxes(0, 1).reshape(len(own), -1).take(pair, axis=-1) * samples for part in parts]
    if fixed.any():
        more = fixed[:, KEPT], fixed[:, AT_HEAD], fixed[:, AT_UNITS:].min(axis=1)
        several = [part + each.T.take(code, axis=-1) for part, each in zip(several, more, strict=True)]
    kept, head, unit = several
    return kept, head, unit


def _by_moments(each: Any) -> tuple[Any, Any, Any]:
    return each[:, KEPT], each[:, AT_HEAD], each[:, AT_UNITS:].max(axis=1)


def _gathers(c: Columns, shards: Mask) -> Mask:
    over = c.dp_shard * c.cp
    return shards & (np.where(c.ep > 1, over * c.tp, over) > 1)


def _stays(job: Job, c: Columns, load: RankLoad) -> Bytes:
    """Return what stays on a rank; of gradients that each step makes anew there are none yet."""
    d, shards, piped = division(c), shards_parameters(c), c.pp > 1
    own = divided(load.trainable, d)
    states = states_of(own, load.frozen, d, c.shard, of_elements(c.offload, job.element))
    one_by_one = ~shards & ((c.dp * c.cp == 1) | piped) & (not job.flags.fused)
    frees = one_by_one | (_gathers(c, shards) & (not job.flags.pooled))
    kept = states.parameters + states.optimizer + np.where(frees, 0.0, states.gradients)
    return job.context + job.buffers + kept


def _under_pipelines(job: Job, c: Columns, load: RankLoad, *, late: Mask) -> Bytes:
    """Return what is gathered under a pipeline; unreduced as well where not all steps are in flight."""
    element = job.element
    whole = sum(divided(load.trainable, division(c)))
    return np.where(late, element.compute, element.compute + element.reduce) * whole


def _received(job: Job, c: Columns, rank: Any) -> Bytes:
    """Return what a rank has for what crosses to it and back, less what may lie there of what is kept."""
    if job.stack.crossing is not Crossing.BUFFERS:
        return 0.0
    bent, stages = is_any_of(c.pp_schedule, _BENT), c.virtual_stages
    receiving, sending = stages - (rank == 0), stages - (rank == np.where(bent, 0, c.pp - 1))
    # where a bent chain turns gradients are what the stage before is given back
    less = (receiving > sending) + (bent & (rank == c.pp - 1))
    (plain, _), (cast, _) = formats_of(job.model)
    width = np.where(shards_parameters(c), plain, cast) * c.micro_batch_size / c.cp
    if job.stack.crosses_divided:
        width = width / np.where(c.sequence_parallel, c.tp, 1)
    count = np.where(c.pp > 1, np.maximum(receiving + sending - less, 0), 0)
    return c.gradient_accumulation_steps * count * width


def _gathered(job: Job, widths: Columns) -> tuple[Bytes, Bytes, Bytes]:
    """Return what stands idle of each width, and is gathered as a head and as any unit run.

    Where there is no pipeline. The unit's gradients come, and what its backward reads goes: of what is
    gathered its parameters count once less.
    """
    element, d, nothing = job.element, division_of(widths), np.zeros(len(widths.pp))
    if job.stack.gathers_in_graph or job.stack.ends_apart:
        return nothing, nothing, nothing
    whole = whole_model(job.model)
    kinds: Sequence[Kind] = job.kinds.each[0]
    units = [nothing + divided_total(kind.unit, d) for kind in kinds]
    root, largest = nothing + divided_total(whole.root, d), np.maximum.reduce(units)
    pool = element.compute * np.maximum(root, 2 * largest) if job.flags.pooled else nothing
    every = sum(unit * count for unit, count in zip(units, whole.repeats, strict=True))
    own = [unit for unit, is_unit in zip(units, blocks_of(job).units, strict=True) if is_unit]
    ahead = np.minimum(2 * np.minimum.reduce(own), every) if own else nothing
    return pool, element.compute * root, element.compute * (root + ahead)


def _loss_in_parallel(job: Job, widths: Columns) -> Bytes:
    """Return by how much more a head makes of each sample where the loss is in parallel, or less."""
    last = job.kinds.each[0][job.pipelines.kinds.of[-1]]
    if not job.kinds.losses or last.of_unit or not last.of_loss:
        return np.zeros(len(widths.pp))
    in_parallel = widths.loss_parallel & (division_of(widths).vocabulary >= widths.tp)
    of_sample = last.of_loss * job.stack.parallel_loss_tensors / widths.cp / widths.tp
    return np.where(in_parallel, of_sample, 0.0)
