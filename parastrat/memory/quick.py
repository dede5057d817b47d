"""What plans hold at least as their backward begins, told by one rank of a pipeline alone (``foremost``).

It holds its states then, what all micro-batches in flight keep, and what its last block makes as it runs.
That is worked out for each pipeline and width, so that rows of plans take a tenth of the time of
``floors.memory_floor``, which looks at several ranks' blocks, and is no lower.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of, derived, derived_with, ends_of
from parastrat.distinct import NUMBERED, distinct, places_of
from parastrat.elementwise import taken, where
from parastrat.memory.alike import code_of_plans, unlike
from parastrat.memory.crossing import formats_of
from parastrat.memory.flying import in_flight, way_of_turns
from parastrat.memory.foremost import (
    AT_HEAD,
    AT_UNITS,
    HALFWAY,
    KEPT,
    VARIANTS,
    WAYS,
    blocks_of,
    ranks_of,
    told_of,
)
from parastrat.memory.plans import in_parallel, job_of, shares_of
from parastrat.ranks.division import Division, divided, divided_experts, divided_total, division
from parastrat.ranks.load import load_of, whole_model
from parastrat.ranks.states import of_elements, states_of
from parastrat.stack import Crossing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.memory.alike import Alike
    from parastrat.memory.kinds import Kind
    from parastrat.memory.plans import Job
    from parastrat.plan import Recompute
    from parastrat.ranks.load import RankLoad
    from parastrat.units import Bytes, Numbers

#: so many rows at once, of which the processor's cache holds what is made
_MOST = 9000
#: a table of ranks with widths may be so many times longer than the rows
_SPARSE = 4


def quick_floor(
    facts: Facts,
    c: Columns,
    policies: Sequence[Recompute],
    widths: tuple[Columns, Any] | None = None,
    *,
    closer: bool = False,
) -> Bytes:
    """Return what ``memory_floor`` does, or less.

    Args:
        facts: the job.
        c: plans.
        policies: that are looked at.
        widths: that the plans may have, and which of them each has, where these are kept: what hangs on
            them is worked out once.
        closer: whether weights count that tp ranks gather for gradients.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    many = len(c.pp)
    if not many:
        return np.empty((len(policies), 0))
    every, width = widths or distinct(c, NUMBERED["width"])
    if many <= _MOST:
        return _floor(facts, c, policies, (every, width), closer=closer)
    ends = ends_of([many], _MOST)
    parts = (slice(begin, end) for begin, end in pairwise([0, *ends]))
    floors = [_floor(facts, c.at(own), policies, (every, width[own]), closer=closer) for own in parts]
    return np.concatenate(floors, axis=1)


def _floor(
    facts: Facts, c: Columns, policies: Sequence[Recompute], widths: tuple[Columns, Any], *, closer: bool
) -> Bytes:
    """Return the floors of so many rows as are looked at together."""
    job = job_of(facts)
    table, at = job.pipelines.table(c)
    places = np.flatnonzero(np.bincount(at))
    which = np.zeros(len(table.counts), dtype=np.int64)
    which[places] = ranks_of(job.kinds, places.tolist())
    load = load_of(job.pipelines, table.numbers, (table.firsts + which).take(at))
    alike, piped, steps = unlike(job.flags, code_of_plans(c)), c.pp > 1, c.gradient_accumulation_steps
    ways = where(alike.turns, 1 + way_of_turns(alike, c), 0)
    codes = (at * WAYS + ways) * VARIANTS + alike.variant
    closer = closer and blocks_of(job.kinds).halfway is not None
    held = _activations(job, (codes, *widths), c.micro_batch_size, policies, closer=closer)
    kept, head, unit, *halfway = held
    # under a pipeline all is gathered, and not reduced where a later micro-batch of the step is to come
    in_all, d = in_flight(alike, c, load.rank), _division(c, *widths)
    late = alike.early & (steps <= in_all)
    own = divided(load.trainable, d)
    under = where(late, job.element.compute, job.element.compute + job.element.reduce) * sum(own)
    every, width = widths
    pool, at_head, at_unit = (part.take(width) for part in _gathered(job, every))
    base = _stays(job, alike, d, load, own) + where(alike.gathers, np.where(piped, 0.0, pool), 0.0)
    head = head + _loss_in_parallel(job, every).take(width) * np.where(piped, 0, c.micro_batch_size)
    head = head + where(alike.gathers, np.where(piped, under, at_head), 0.0)
    for half in halfway:
        of_weight = where(alike.shards, job.element.compute, job.element.parameter)
        unit = np.maximum(unit, half + of_weight * _regathered(job, every).take(width))
    unit = unit + where(alike.gathers, np.where(piped, under, at_unit), 0.0)
    flying = where(alike.turns, 1, in_all)
    crossing = _received(job, alike, c, load.rank)
    return base + job.share * (kept * flying + np.maximum(head, unit) + crossing)


def _activations(
    job: Job, kinds: tuple[Any, Columns, Any], samples: Any, policies: Sequence[Recompute], *, closer: bool
) -> Sequence[Bytes]:
    """Return what rows keep, and what exists beside it as a head runs, and a unit: policies before rows.

    Args:
        job: the job.
        kinds: the codes of the rows' ranks, the widths that may occur, and which of them each row has.
        samples: of a micro-batch.
        policies: that are looked at.
        closer: whether what exists halfway through a unit is told as well.
    """
    codes, widths, width = kinds
    (found, code), (occurring, width) = places_of(codes), places_of(width)
    own = [code_of(policy) for policy in policies]
    # codes before moments before policies before parts
    held = told_of(job.kinds, found.tolist())[:, :, own]
    shares = _shares_of_one(widths).take(occurring, axis=1)
    of_sample, fixed, pair = held[..., :-1], held[..., -1], code * len(occurring) + width
    if len(found) * len(occurring) <= _SPARSE * len(code):
        parts = _by_moments(of_sample @ shares, closer=closer)
        # policies before codes with each width
        of_pairs = [part.swapaxes(0, 1).reshape(len(own), -1) for part in parts]
    else:
        # few of all pairs occur: a table of all would not stay in the processor's cache
        pairs, pair = places_of(pair)
        of_code, of_width = np.divmod(pairs, len(occurring))
        each = of_sample.take(of_code, axis=0).reshape(len(pairs), -1, len(shares))
        made = (each @ shares.T[of_width, :, None]).reshape(len(pairs), *of_sample.shape[1:-1])
        of_pairs = [part.T for part in _by_moments(made, closer=closer)]
    several = [part.take(pair, axis=-1) * samples for part in of_pairs]
    if fixed.any():
        more = fixed[:, KEPT], fixed[:, AT_HEAD], fixed[:, AT_UNITS:].min(axis=1), fixed[:, HALFWAY]
        several = [part + each.T.take(code, axis=-1) for part, each in zip(several, more, strict=False)]
    return several


@derived
def _shares_of_one(widths: Columns) -> Any:
    """Return of how much of one sample each width has the bytes: what divides them before widths."""
    one = widths.joined({"micro_batch_size": 1})
    return np.array(np.broadcast_arrays(*shares_of(one, division(widths))), dtype=float)


def _division(c: Columns, widths: Columns, width: Any) -> Division:
    """Return what divides parameters of plans, most of which hangs on their widths."""
    of_width, dense = division(widths), c.dp_shard * c.cp
    tensor, vocabulary, experts, tokens = (taken(each, width) for each in of_width[:4])
    # as ``division_of`` has it
    apart = where(c.ep > 1, dense * tensor / c.ep, dense)
    return Division(tensor, vocabulary, experts, tokens, dense, apart)


def _by_moments(each: Any, *, closer: bool) -> Sequence[Any]:
    found = each[:, KEPT], each[:, AT_HEAD], each[:, AT_UNITS:].max(axis=1)
    return (*found, each[:, HALFWAY]) if closer else found


@derived_with
def _regathered(job: Job, widths: Columns) -> Numbers:
    """Return the parameters that tp ranks of each width gather, beyond a rank's share of gradients."""
    halfway = blocks_of(job.kinds).halfway
    kind: Kind = job.kinds.each[0][halfway[0] if halfway else 0]
    return np.where(widths.tp > 1, kind.regathered - kind.unshared / widths.tp, 0.0)


def _stays(job: Job, alike: Alike, d: Division, load: RankLoad, own: tuple[Numbers, Numbers]) -> Bytes:
    """Return what stays on a rank; of gradients that each step makes anew there are none yet."""
    states = states_of(own, load, d, alike.shard, of_elements(alike.offload, job.element), job.matrices)
    kept = states.parameters + states.optimizer + where(alike.frees, 0.0, states.gradients)
    return job.context + job.buffers + kept


def _received(job: Job, alike: Alike, c: Columns, rank: Any) -> Bytes:
    """Return what a rank has for what crosses to it and back, less what may lie there of what is kept."""
    if job.stack.crossing is not Crossing.BUFFERS:
        return 0.0
    stages = c.virtual_stages
    receiving, sending = stages - (rank == 0), stages - (rank == where(alike.bent, 0, c.pp - 1))
    # where a bent chain turns gradients are what the stage before is given back
    less = (receiving > sending) + (alike.bent & (rank == c.pp - 1))
    (plain, _), (cast, _) = formats_of(job.model)
    width = where(alike.shards, plain, cast) * c.micro_batch_size / c.cp
    if job.stack.crosses_divided:
        width = width / np.where(c.sequence_parallel, c.tp, 1)
    count = np.where(c.pp > 1, np.maximum(receiving + sending - less, 0), 0)
    return c.gradient_accumulation_steps * count * width


@derived_with
def _gathered(job: Job, widths: Columns) -> tuple[Bytes, Bytes, Bytes]:
    """Return what stands idle of each width, and is gathered as a head and as any unit run.

    Where there is no pipeline. The unit's gradients come, and what its backward reads goes: of what is
    gathered its parameters count once less.
    """
    element, d, nothing = job.element, division(widths), np.zeros(len(widths.pp))
    if job.stack.gathers_in_graph or job.stack.ends_apart:
        return nothing, nothing, nothing
    whole = whole_model(job.model)
    kinds: Sequence[Kind] = job.kinds.each[0]
    units = [nothing + divided_total(kind.unit, d) for kind in kinds]
    root = nothing + divided_total(whole.root, d)
    apart = [_experts_apart(job, kind, widths) for kind in kinds]
    # of a block with experts of their own there are two
    two = [np.where(own > 0, unit, 2 * unit) for unit, own in zip(units, apart, strict=True)]
    pool = element.compute * np.maximum(root, np.maximum.reduce(two)) if job.flags.pooled else nothing
    every = sum(unit * count for unit, count in zip(units, whole.repeats, strict=True))
    told = zip(units, apart, blocks_of(job.kinds).units, strict=True)
    own = [2 * unit - experts for unit, experts, is_unit in told if is_unit]
    ahead = np.minimum(np.minimum.reduce(own), every) if own else nothing
    return pool, element.compute * root, element.compute * (root + ahead)


def _experts_apart(job: Job, kind: Kind, widths: Columns) -> Numbers:
    """Return the parameters of experts that are a unit of their own, as ``memory.unmet`` does of plans."""
    if not job.stack.experts_apart:
        return 0.0
    return np.where(widths.ep > 1, divided_experts(kind.unit, division(widths)), 0.0)


@derived_with
def _loss_in_parallel(job: Job, widths: Columns) -> Bytes:
    """Return by how much more a head makes of each sample where the loss is in parallel, or less."""
    last = job.kinds.each[0][job.pipelines.kinds.of[-1]]
    if not job.kinds.losses or last.of_unit or not last.of_loss:
        return np.zeros(len(widths.pp))
    of_sample = last.of_loss * job.stack.parallel_loss_tensors / widths.cp / widths.tp
    return np.where(in_parallel(widths, division(widths)), of_sample, 0.0)
