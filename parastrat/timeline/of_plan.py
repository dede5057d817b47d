"""The timeline of one plan, from the seconds that the cost model gives its blocks and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from parastrat.assess import plans_table
from parastrat.columns import Columns, code_of
from parastrat.cost.blocks import block_seconds, forward_s, whole_s
from parastrat.cost.communication import fabric_of
from parastrat.cost.copies import CopySeconds, autocast_s, copies_of_kinds, with_casts
from parastrat.cost.data_parallel import (
    UnitSeconds,
    data_parallel_s,
    gather_and_reduce_s,
    gathered_element_bytes,
)
from parastrat.cost.sends import exposed_send_s
from parastrat.plan import Shard
from parastrat.ranks import block_kinds, whole_model
from parastrat.ranks.division import local_total
from parastrat.ranks.stages import cut
from parastrat.ranks.totals import trainable_totals, unit_totals
from parastrat.schedules import rank_of_stage, schedule_of
from parastrat.tables import facts_columns
from parastrat.timeline.data_parallel import COMPUTE, GATHER, REDUCE, Unit, works_of
from parastrat.timeline.kinds import Kind
from parastrat.timeline.orders import orders
from parastrat.timeline.pipeline import Stage, run
from parastrat.timeline.streams import Sharing, passed

if TYPE_CHECKING:
    from parastrat.case import Case, Facts
    from parastrat.timeline.pipeline import Span
    from parastrat.timeline.streams import Passed
    from parastrat.units import Seconds

#: micro-batches after the first and before the last are alike, so that one of them tells all
_ALIKE = 3
#: micro-batches for each rank that fill a pipeline and empty it again, as all schedules take them
_ROUNDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a lane does for a while."""

    kind: Kind
    name: str
    start: Seconds
    end: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A rank of a pipeline, or a stream of a device."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def busy(self) -> Seconds:
        return sum(piece.end - piece.start for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A step without what the optimizer takes."""

    lanes: tuple[Lane, ...]
    #: of the whole step
    seconds: Seconds
    #: what the lanes show, which may be fewer micro-batches
    micro_batches: int
    shown: Seconds
    #: of the whole step what waits: for other ranks, or for collectives of parameters and gradients
    exposed: Seconds
    #: what collectives of parameters and gradients take in the step; 0 where other ranks are waited for
    collectives: Seconds = 0.0


def timeline_of(case: Case) -> Timeline | None:
    """Return a plan's timeline; None where one device does nothing but compute."""
    facts, plan = case.facts, case.plan
    c = Columns({**facts_columns(facts), **plans_table((plan,))})
    of_kinds, casts = block_seconds(facts, c).of_kinds(c), autocast_s(facts, c)
    every = of_kinds if casts is None else with_casts(c, of_kinds, casts)
    seconds = {part: of_kind[:, 0] for part, of_kind in every.items()}
    if plan.mesh.pp > 1:
        return _of_pipeline(case, c, seconds)
    return _of_streams(facts, c, seconds) if plan.mesh.world_size > 1 else None


def _of_pipeline(case: Case, c: Columns, seconds: dict[str, Any]) -> Timeline:
    facts, plan = case.facts, case.plan
    pp, batches = plan.mesh.pp, plan.gradient_accumulation_steps
    forward, weights, whole = forward_s(seconds), seconds["weights"], whole_s(seconds)
    of_kind, stages = np.array(block_kinds(facts.model).of), []
    for number, repeats in enumerate(cut(facts.model, pp * plan.virtual_stages)):
        held = np.bincount(of_kind, weights=repeats, minlength=len(forward))
        stages.append(
            Stage(
                rank=rank_of_stage(plan, number),
                forward=float(held @ forward),
                inputs=float(held @ (whole - forward - weights)),
                weights=float(held @ weights),
            )
        )
    send = float(exposed_send_s(facts, c, fabric_of(facts))[0])

    def ran(micro_batches: int) -> tuple[tuple[Span, ...], ...]:
        ordered = orders(schedule_of(plan), pp, plan.virtual_stages, micro_batches)
        return run(ordered, stages, send)

    spans = every = ran(batches)
    if batches > _ROUNDS * pp:
        spans = ran(_ROUNDS * pp)
    lanes = tuple(
        Lane(
            name=f"rank {rank}",
            pieces=tuple(
                Piece(
                    kind=span.action.kind,
                    name=f"stage {span.action.stage}, micro-batch {span.action.micro_batch}",
                    start=span.start,
                    end=span.end,
                )
                for span in own
            ),
        )
        for rank, own in enumerate(spans)
    )
    end = max(own[-1].end for own in every)
    busiest = max(sum(span.end - span.start for span in own) for own in every)
    return Timeline(
        lanes=lanes,
        seconds=end,
        micro_batches=min(batches, _ROUNDS * pp),
        shown=max(own[-1].end for own in spans),
        exposed=end - busiest,
    )


def _of_streams(facts: Facts, c: Columns, seconds: dict[str, Any]) -> Timeline:
    units, root, beside = _units(facts, c, seconds)
    again = bool(c.reshard_after_forward[0])
    batches = int(c.gradient_accumulation_steps[0])
    sharing = Sharing(compute=COMPUTE, beside=beside)
    shown = min(batches, _ALIKE)

    def ran(micro_batches: int) -> tuple[tuple[Passed, ...], Seconds, Seconds]:
        """Return the work of so many, when its last ends, and what collectives take by themselves."""
        works = passed(works_of(units, root, micro_batches, again=again), sharing)
        moved = sum(each.work.seconds for each in works if each.work.stream != COMPUTE)
        return works, max(each.end for each in works), moved

    works, end, moved = ran(shown)
    whole, collectives = end, moved
    if batches > shown:
        _, before, less = ran(shown - 1)
        whole += (batches - shown) * (end - before)
        collectives += (batches - shown) * (moved - less)
    computing = batches * sum(unit.forward + unit.backward for unit in units)
    lanes = (
        Lane(
            name=stream,
            pieces=tuple(
                Piece(kind=each.work.kind, name=each.work.name, start=each.start, end=each.end)
                for each in works
                if each.work.stream == stream
            ),
        )
        for stream in (COMPUTE, GATHER, REDUCE)
    )
    return Timeline(
        lanes=tuple(lane for lane in lanes if lane.pieces),
        seconds=whole,
        micro_batches=shown,
        shown=end,
        exposed=whole - computing,
        collectives=collectives,
    )


def _units(facts: Facts, c: Columns, seconds: dict[str, Any]) -> tuple[list[Unit], Unit, float]:
    """Return the blocks in the order of forward, the root, and how fast compute is beside a collective."""
    kinds, load, fabric = block_kinds(facts.model), whole_model(facts.model), fabric_of(facts)
    of_model = data_parallel_s(facts, c, load, fabric, UnitSeconds(0.0, 0.0))
    fsdp = bool((c.shard == code_of(Shard.PARAMETERS))[0])
    forward, whole = forward_s(seconds), whole_s(seconds)
    trained = local_total(trainable_totals(kinds), c)[:, 0]
    all_trained = float(local_total(load.trainable, c)[0])
    once = float(of_model["once"][0])
    gathers = reduces = root_gather = root_reduce = np.zeros((len(forward), 1))
    copies = copies_of_kinds(facts, c) or CopySeconds(gathers, gathers)
    if fsdp:
        narrow = gathered_element_bytes(facts)
        gathers, reduces = gather_and_reduce_s(facts, c, unit_totals(kinds), fabric, narrow)
        root_gather, root_reduce = gather_and_reduce_s(facts, c, load.root, fabric)
    share = once / all_trained if all_trained else 0.0
    units, told = [], 0.0
    for block, kind in zip(facts.model.blocks, kinds.of, strict=True):
        own = Unit(
            name=block.name,
            forward=float(forward[kind]),
            backward=float(whole[kind] - forward[kind]),
            gather=float(gathers[kind, 0]),
            reduce=float(reduces[kind, 0]),
            copied_out=float(copies.out[kind, 0]),
            copied_into=float(copies.into[kind, 0]),
            reduce_last=0.0 if fsdp and not block.unit else float(share * trained[kind]),
        )
        told += own.reduce_last * block.repeat
        units += [own] * block.repeat
    # the root's, and of tied weights what the first of them has for all
    root = Unit(
        name="root",
        forward=0.0,
        backward=0.0,
        gather=float(root_gather.flat[0]),
        reduce=float(root_reduce.flat[0]),
        reduce_last=max(once - told, 0.0) if fsdp else 0.0,
    )
    return units, root, float(np.broadcast_to(of_model["overlap"], (1,))[0])
