"""What decides the way that formulas of memory take, as plain values where plans have it in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.columns import code_of
from parastrat.distinct import places_of
from parastrat.elementwise import where
from parastrat.plan import Offload, PipelineSchedule, Shard
from parastrat.remembered import remembered
from parastrat.schedules import SPLIT_ALWAYS, V_SHAPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from parastrat.columns import Columns
    from parastrat.units import Mask, Numbers

_UNSHARDED, _SHARDED = code_of(Shard.NONE), code_of(Shard.PARAMETERS)
_SPLIT_ALWAYS = frozenset(code_of(schedule) for schedule in SPLIT_ALWAYS)
_BENT = frozenset(code_of(schedule) for schedule in V_SHAPED)
_ONE_F_ONE_B = code_of(PipelineSchedule.ONE_F_ONE_B)
_INTERLEAVED = code_of(PipelineSchedule.INTERLEAVED)
_AS_RANKS = _BENT | {code_of(PipelineSchedule.INTERLEAVED_ZERO_BUBBLE)}
#: under these a rank's several virtual stages have each a number in flight of its own
_TAKING_TURNS = _AS_RANKS | {_INTERLEAVED}
_HOLDING_FEWER = _AS_RANKS | {_ONE_F_ONE_B, _INTERLEAVED}
_SHARDS, _OFFLOADS, _SCHEDULES = len(Shard), len(Offload), len(PipelineSchedule) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """What some plans have in common; of plans that differ in it ``Unlike`` has arrays instead."""

    #: what is sharded, and what is offloaded, as columns have it
    shard: Numbers
    offload: Numbers
    #: which way blocks hold what they do (``memory.variants``)
    variant: Any
    piped: Mask
    #: a rank's virtual stages have each a number in flight of its own, or wait for their weights
    turns: Mask
    #: micro-batches are in flight by the ranks behind, by chunks, or as many as there are ranks; or all
    as_behind: Mask
    as_chunks: Mask
    as_ranks: Mask
    #: every backward is split into that of inputs and that of weights
    splits: Mask
    #: what is made again for a block may be among what waits for its weights' backward
    remade_waits: Mask
    #: the chain of blocks runs down the ranks and up again
    bent: Mask
    #: a step has too few micro-batches for virtual stages to have their most in flight
    few: Mask
    #: parameters are sharded, over one rank if that is all; and over several, experts' over those of tp too
    shards: Mask
    gathers: Mask
    #: they are gathered under a pipeline, so that no gradients come before the end of a step
    late: Mask
    #: and all micro-batches of a step may be in flight: there are few, or its schedule holds all
    early: Mask
    #: gradients come one by one: torch's, which ``zero_grad`` frees, in no buckets of DDP. Pipelines
    #: average over data ranks at the end of a step, without DDP; Megatron's gradients stand in one buffer
    one_by_one: Mask
    #: whole gradients of a micro-batch are added to those of one before, if there is one, as torch does
    adds: Mask
    #: those of a tied weight's two blocks are added up
    sums: Mask
    #: those of a micro-batch may wait as another one runs: DDP's, whose buckets others than torch's
    #: accumulate in; and of FSDP2 the root's
    waits: Mask
    #: gradients that are not made yet leave memory free: what comes from a stream of its own is kept for
    #: the next step
    frees: Mask
    #: autocast makes short copies of weights
    casts: Mask

    def at(self, rows: Any) -> Alike:  # noqa: ARG002 - as of ``Unlike``
        """Return it for some of the plans."""
        return self


class Unlike:
    """What plans differ in, in arrays: what is read is taken then, or plain where all have it in common."""

    def __init__(self, several: Callable[[str], Any], which: Any) -> None:
        """Set of each plan which of several ``Alike`` it has, told as ``_told_apart`` does."""
        self.__dict__.update(_several=several, _which=which)

    def __getattr__(self, name: str) -> Any:
        column = self._several(name)
        if type(column) is np.ndarray:
            column = column.take(self._which)
        self.__dict__[name] = column
        return column

    def at(self, rows: Any) -> Unlike:
        """Return it for some of the plans."""
        return Unlike(self._several, self._which.take(rows))


@dataclass(frozen=True, slots=True)
class JobFlags:
    """What of a job decides the way as well."""

    #: kernels are fused by hand
    fused: bool
    #: what is freed stays with the stream that made it
    pooled: bool
    #: autocast makes short copies of weights
    casts: bool


def code_of_plans(c: Columns) -> Numbers:
    """Return a number for each plan that is the same for plans which are alike."""
    piped = c.pp > 1
    flags = 16 * (c.virtual_stages > 1) + 32 * (piped & (c.gradient_accumulation_steps < 2 * c.pp))
    # without a pipeline no schedule counts
    choices = _SHARDS * (c.offload + _OFFLOADS * (c.pp_schedule + 1) * piped)
    # of one plan it is not known
    own = code_of_meshes(c) if type(piped) is bool or not c.has("alike_meshes") else c.alike_meshes
    return own + choices + _SHARDS * _OFFLOADS * _SCHEDULES * flags


def code_of_meshes(c: Columns) -> Numbers:
    """Return what of that number hangs on the mesh alone, and on what is sharded over it."""
    sharded, over = c.shard == _SHARDED, c.dp_shard * c.cp
    gathers = sharded & (where(c.ep > 1, over * c.tp, over) > 1)
    # how many ranks have data of their own counts where nothing is sharded and there is no pipeline
    spread = (c.pp == 1) & (c.shard != _SHARDED)
    flags = (c.pp > 1) + 2 * gathers + spread * (4 * (c.dp * c.cp == 1) + 8 * (c.dp == 1))
    return c.shard + _SHARDS * _OFFLOADS * _SCHEDULES * flags


def roughly(codes: Numbers) -> Numbers:
    """Return of such numbers what is the same for plans that go most of the way together."""
    return codes // (_SHARDS * _OFFLOADS * _SCHEDULES) & 3


def alike_of(job: JobFlags, code: int) -> Alike:
    """Return what plans with this number have in common."""
    known = _known(job)
    if code not in known:
        known[code] = _alike(job, code)
    return known[code]


@remembered
def _known(job: JobFlags) -> dict[int, Alike]:
    """Return what plans of a job have in common by their numbers, as far as these were met."""
    del job
    return {}


def _alike(job: JobFlags, code: int) -> Alike:
    flags, choices = divmod(code, _SHARDS * _OFFLOADS * _SCHEDULES)
    scheduled, shard = divmod(choices, _SHARDS)
    scheduled, offload = divmod(scheduled, _OFFLOADS)
    schedule = scheduled - 1
    piped, gathers, undivided, alone, several, few = (flags >> place & 1 == 1 for place in range(6))
    shards, whole = shard == _SHARDED, shard != _SHARDED and not job.fused
    one_by_one = whole and shard == _UNSHARDED and (undivided or piped)
    splits = piped and schedule in _SPLIT_ALWAYS
    # the weights of a rank's only stage wait as those of several do; of a V each rank has two stages
    single = splits and schedule not in _BENT
    turns = piped and (several or single) and schedule in _TAKING_TURNS
    holds_all = schedule not in _HOLDING_FEWER
    return Alike(
        shard=shard,
        offload=offload,
        variant=2 * piped + (not shards),
        piped=piped,
        turns=turns,
        as_behind=schedule == _ONE_F_ONE_B,
        as_chunks=schedule == _INTERLEAVED,
        as_ranks=schedule in _AS_RANKS,
        splits=splits,
        remade_waits=turns and splits,
        bent=schedule in _BENT,
        few=few,
        shards=shards,
        gathers=gathers,
        late=gathers and piped,
        early=gathers and piped and (few or holds_all),
        one_by_one=one_by_one,
        adds=whole and (alone or piped),
        sums=whole and not piped,
        waits=not piped and (gathers or (shard == _UNSHARDED and not job.fused and not alone)),
        frees=one_by_one or (gathers and not job.pooled),
        casts=job.casts and not shards,
    )


def unlike(job: JobFlags, codes: Any) -> Alike:
    """Return what plans with these numbers differ in."""
    found, which = places_of(codes)
    if len(found) == 1:
        return alike_of(job, int(found[0]))
    made: Any = Unlike(_told_apart(job, tuple(found.tolist())), which)
    alike: Alike = made
    return alike


@cache
def _told_apart(job: JobFlags, codes: tuple[int, ...]) -> Callable[[str], Any]:
    """Return what tells of plans with some numbers what they have, an array where they differ in it."""
    several = [alike_of(job, code) for code in codes]

    @cache
    def column(name: str) -> Any:
        own = [getattr(each, name) for each in several]
        return own[0] if len(set(own)) == 1 else np.array(own)

    return column
