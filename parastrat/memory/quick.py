"""What plans hold at least as their backward begins, told by the first rank of a pipeline alone.

It holds its states then, what all micro-batches in flight keep, and what its last block makes as it runs.
That is added up once for each pipeline and width, so that rows of plans take a fifth of the time of
``floors.memory_floor``, which looks at all kinds of block, and is no lower.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.choices import is_any_of
from parastrat.columns import code_of
from parastrat.distinct import NUMBERED, distinct
from parastrat.elementwise import smaller
from parastrat.memory.gathered import shards_parameters
from parastrat.memory.kinds import Shared
from parastrat.memory.plans import job_of, shares_of
from parastrat.plan import PipelineSchedule, Recompute
from parastrat.ranks.division import divided, divided_total, division, division_of
from parastrat.ranks.load import load_of, whole_model
from parastrat.ranks.states import of_elements, states_of
from parastrat.remembered import remembered
from parastrat.schedules import SPLIT_ALWAYS, V_SHAPED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parastrat.case import Facts
    from parastrat.columns import Columns
    from parastrat.memory.kinds import Kind
    from parastrat.memory.plans import Job
    from parastrat.ranks.load import RankLoad
    from parastrat.units import Bytes, Mask

_SPLIT = tuple(SPLIT_ALWAYS)
_TURNING = (PipelineSchedule.INTERLEAVED, PipelineSchedule.INTERLEAVED_ZERO_BUBBLE, *V_SHAPED)
#: what tells what the first rank of a pipeline has in flight: its virtual stages take turns, backward is
#: split, and a step has no more micro-batches than there are ranks
_WAYS = 8
_VARIANTS = 4
_ALONE = (1, 1, False)
#: what is told of a first rank: behind these, of each kind of unit
_KEPT, _AT_HEAD, _AT_UNITS = range(3)


@dataclass(frozen=True, kw_only=True)
class _Blocks:
    """What a model's blocks hold for one sample, by what divides it as ``Shared`` has it."""

    #: one repeat keeps: variants before policies before kinds before parts
    kept: Any
    #: what exists at the moments of each kind: variants before moments before parts
    working: Any
    kind_of: tuple[int, ...]
    #: what a head makes that the root gathers: variants before parts; nothing where a unit is the last
    head: Any
    #: which kinds are units
    units: tuple[bool, ...]
    #: of pipelines' first ranks, by their ways and variants: what is kept, and beside it as a head runs and
    #: at the moments of the foremost unit of each kind; policies before parts
    of_first: dict[int, Any] = field(default_factory=dict)


@remembered
def _blocks(job: Job) -> _Blocks:
    variants, chain = job.kinds.each, job.pipelines.kinds.of
    kept = np.array(
        [[[_parts(kind.kept[code_of(policy)]) for kind in own] for policy in Recompute] for own in variants]
    )
    # in one variant a kind may have fewer moments than in another: its last one several times
    most = [max(len(kind.moments) for kind in several) for several in zip(*variants, strict=True)]
    working = [
        [
            _parts(moment.working)
            for kind, many in zip(own, most, strict=True)
            for moment in (kind.moments + kind.moments[-1:] * many)[:many]
        ]
        for own in variants
    ]
    units = tuple(bool(kind.of_unit) for kind in variants[0])
    output = np.array(_parts(job.kinds.output))
    ends = not units[chain[-1]]
    head = [np.add(_parts(own[chain[-1]].moments[0].working), output) * ends for own in variants]
    return _Blocks(
        kept=kept,
        working=np.array(working),
        kind_of=tuple(np.repeat(np.arange(len(most)), most).tolist()),
        head=np.array(head),
        units=units,
    )


def _parts(shared: Shared | None) -> list[float]:
    return [part or 0.0 for part in shared or (0.0,) * len(Shared._fields)]


def quick_floor(facts: Facts, c: Columns, policies: Sequence[Recompute]) -> Bytes:
    """Return what ``memory_floor`` does, or less.

    Returns:
        A row for each policy, beside the plans' rows.
    """
    if not len(c.pp):
        return np.empty((len(policies), 0))
    job = job_of(facts)
    (widths, width), (table, at) = distinct(c, NUMBERED["width"]), job.pipelines.table(c)
    load = load_of(job.pipelines, table.numbers.take(table.firsts.take(at), axis=-1))
    piped, steps, shards = c.pp > 1, c.gradient_accumulation_steps, shards_parameters(c)
    turns = piped & (c.virtual_stages > 1) & is_any_of(c.pp_schedule, _TURNING)
    ways = turns * (1 + 2 * is_any_of(c.pp_schedule, _SPLIT) + 4 * (steps <= c.pp))
    codes = (at * _WAYS + ways) * _VARIANTS + 2 * piped + ~shards
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
    flying = np.where(piped & ~turns, smaller(c.pp, steps), 1)
    return base + job.share * (kept * flying + np.maximum(head, unit))


def _activations(
    job: Job, kinds: tuple[Any, Columns, Any], samples: Any, policies: Sequence[Recompute]
) -> tuple[Bytes, Bytes, Bytes]:
    """Return what rows keep, and what exists beside it as a head runs, and a unit: policies before rows.

    Args:
        job: the job.
        kinds: the codes of the rows' first ranks, the widths that occur, and which of them each row has.
        samples: of a micro-batch.
        policies: that are looked at.
    """
    codes, widths, width = kinds
    found = np.flatnonzero(np.bincount(codes))
    place = np.zeros(int(found[-1]) + 1, dtype=np.int64)
    place[found] = np.arange(len(found))
    code, own = place.take(codes), [code_of(policy) for policy in policies]
    # codes before moments before policies before parts
    held = np.array([_of_first(job, each)[:, own] for each in found.tolist()])
    one = widths.joined({"micro_batch_size": 1})
    shares = np.array(np.broadcast_arrays(*shares_of(one, division_of(one))), dtype=float)
    of_samples, fixed = held[..., :-1] @ shares, held[..., -1]
    pair = code * len(widths.pp) + width
    parts = _by_moments(of_samples)
    # policies before codes with each width
    several = [part.swapaxes(0, 1).reshape(len(own), -1).take(pair, axis=-1) * samples for part in parts]
    if fixed.any():
        more = fixed[:, _KEPT], fixed[:, _AT_HEAD], fixed[:, _AT_UNITS:].min(axis=1)
        several = [part + each.T.take(code, axis=-1) for part, each in zip(several, more, strict=True)]
    kept, head, unit = several
    return kept, head, unit


def _by_moments(each: Any) -> tuple[Any, Any, Any]:
    return each[:, _KEPT], each[:, _AT_HEAD], each[:, _AT_UNITS:].max(axis=1)


def _of_first(job: Job, code: int) -> Any:
    """Return what is told of a first rank for one sample: before policies before parts."""
    blocks = _blocks(job)
    if code not in blocks.of_first:
        (place, way), variant = divmod(code // _VARIANTS, _WAYS), code % _VARIANTS
        kept, working = blocks.kept[variant], blocks.working[variant]
        counts, freed = _turning(job, place, way) if way else _in_order(job, place)
        found = np.zeros((_AT_UNITS + len(working), *kept[:, 0].shape))
        found[_KEPT] = np.einsum("k,pks->ps", counts, kept)
        if job.pipelines.known.get(_ALONE) == place:
            found[_AT_HEAD] = blocks.head[variant]
        of_units = [
            # what waits for the gradients of weights may be what was made again
            working[moment]
            + (0 if way >> 1 & 1 else kept[0, kind] - kept[:, kind])
            - np.einsum("k,pks->ps", freed[kind], kept)
            for moment, kind in enumerate(blocks.kind_of)
            if freed[kind] is not None and blocks.units[kind]
        ]
        if of_units:
            # the last one stands for those that the rank has not
            found[_AT_UNITS:] = of_units[-1]
            found[_AT_UNITS : _AT_UNITS + len(of_units)] = of_units
        blocks.of_first[code] = found
    return blocks.of_first[code]


def _in_order(job: Job, place: int) -> tuple[Any, list[Any]]:
    """Return the repeats of each kind on a first rank, and of those behind the foremost of each."""
    held, kinds = job.pipelines.cuts[place].held[0, 0], job.pipelines.kinds
    ran = np.zeros(len(kinds.blocks))
    freed: list[Any] = [None] * len(kinds.blocks)
    for block in reversed(range(len(held))):
        kind = kinds.of[block]
        if held[block] and freed[kind] is None:
            freed[kind] = ran.copy()
        ran[kind] += held[block]
    return ran, freed


def _turning(job: Job, place: int, way: int) -> tuple[Any, list[Any]]:
    """Return what ``_in_order`` does of all that is in flight, where virtual stages take turns."""
    few, split = way >> 2, bool(way >> 1 & 1)
    many = len(job.pipelines.kinds.blocks)
    held = job.pipelines.firsts_of(place, split=split)[few].at_kinds[0, :, :many, 0]
    # nothing ran before the block behind all others
    counts = held.max(axis=0)
    return counts, [counts - alive if alive.any() else None for alive in held]


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
    own = [unit for unit, is_unit in zip(units, _blocks(job).units, strict=True) if is_unit]
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
