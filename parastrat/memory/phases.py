"""What a rank holds through a step, phase by phase, for one plan that is shown.

The phases at which memory may peak are those of ``peaks``, so that the largest of them is the estimate;
those between are put together from the same parts. They tell a step's last micro-batch, when most is held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from parastrat.memory.flying import in_flight, takes_turns
from parastrat.memory.gathered import When, gathers, shards_parameters
from parastrat.memory.one_plan import number_of, one_plan
from parastrat.memory.peaks import PARTS
from parastrat.memory.pools import pooled
from parastrat.memory.unmade import early
from parastrat.ranks import ranks_of
from parastrat.ranks.states import context_bytes, element_bytes, local

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Facts
    from parastrat.memory.one_plan import OnePlan
    from parastrat.memory.peaks import MomentHeld
    from parastrat.plan import Plan


class Stage(StrEnum):
    """The stretches of a training step."""

    REST = "between steps"
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCTION = "gradient reduction"
    STEP = "optimizer step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of a step on a rank."""

    stage: Stage
    #: the block that runs, or has just run forward; empty outside blocks
    block: str = ""
    #: of its repeats in the order of running, such as ``1 of 32``
    repeat: str = ""
    #: bytes by the names of ``MemoryEstimate``
    parts: dict[str, int]
    #: of the transient: what FSDP2 or autocast gathers or has not reduced, and what the running block makes
    gathered: int = 0
    running: int = 0

    @property
    def total(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """A step on one kind of pipeline rank; of equal ones the first, which holds most."""

    rank: int
    #: repeats of every block that it has
    blocks: dict[str, int]
    #: micro-batches whose activations it holds at once
    in_flight: float
    #: of these blocks, for one micro-batch, what one repeat keeps for backward, bytes
    kept: dict[str, int]
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        """The phase that holds most; of equal ones the first."""
        return max(self.phases, key=lambda phase: phase.total)


def memory_by_phase(facts: Facts, plan: Plan) -> tuple[RankMemory, ...]:
    """Return what each distinct pipeline rank of a plan holds through a step."""
    job = one_plan(facts, plan)
    return tuple(_rank_memory(job, place) for place in range(len(job.held.load.rank)))


def _rank_memory(job: OnePlan, place: int) -> RankMemory:
    counts, rank = job.counts(place), round(number_of(job.held.load.rank, place))
    return RankMemory(
        rank=rank,
        blocks={name: count for name, count in zip(job.names, counts, strict=True) if count},
        in_flight=float(np.max(in_flight(job.c, rank))),
        kept={name: ceil(kept) for name, kept in zip(job.names, job.kept, strict=True)},
        phases=(
            *_forward(job, place),
            *_backward(job, place),
            _reduction(job, place),
            _phase(Stage.STEP, job.moments[0], place),
        ),
    )


def _phase(stage: Stage, moment: MomentHeld, place: int, block: str = "", repeat: str = "") -> Phase:
    own = {name: ceil(number_of(part, place)) for name, part in moment.parts.items()}
    return Phase(
        stage=stage,
        block=block,
        repeat=repeat,
        parts={part: own[part] for part in PARTS},
        gathered=own.get("gathered", 0),
        running=own.get("running", 0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moving:
    """What comes and goes, bytes."""

    gradients: float
    activations: float = 0.0
    gathered: float = 0.0


def _between(job: OnePlan, place: int, moving: _Moving, stage: Stage, block: str = "") -> Phase:
    """Return a phase at which no rank peaks, put together as those at which one may."""
    states = {name: number_of(part, place) for name, part in job.held.states.items()}
    sharded = shards_parameters(job.c).all()
    idle = (states["gradients"] - moving.gradients) * pooled(job.facts) if sharded else 0.0
    transient = moving.gathered + job.buffers(place)
    lost = job.facts.stack.fragmentation * (moving.activations + transient)
    parts = {
        **states,
        "gradients": moving.gradients,
        "activations": moving.activations,
        "transient": transient,
        "overhead": context_bytes(job.facts) + number_of(job.held.pool, place) + idle + lost,
    }
    own = {part: ceil(parts[part]) for part in PARTS}
    return Phase(stage=stage, block=block, parts=own, gathered=ceil(moving.gathered))


def _forward(job: OnePlan, place: int) -> Iterator[Phase]:
    """Yield what is held between steps, and behind the forward of each kind of block."""
    counts, gradients = job.counts(place), number_of(job.moments[1].parts["gradients"], place)
    gradients = min(gradients, *(number_of(each.parts["gradients"], place) for each in job.moments[1:]))
    # sharded gradients are freed behind the optimizer, those of DDP are views of its buckets
    at_rest = 0.0 if shards_parameters(job.c).all() else gradients
    yield _between(job, place, _Moving(gradients=at_rest), Stage.REST)
    flying = float(np.max(in_flight(job.c, number_of(job.held.load.rank, place))))
    one = sum(kept * count for kept, count in zip(job.kept, counts, strict=True))
    before = flying * one - one
    if takes_turns(job.c).all():
        present = [moment for moment in job.moments[1:] if number_of(moment.present, place)]
        before = max(number_of(moment.parts["activations"], place) for moment in present) - one
    kept, ran = max(before, 0.0), [0] * len(counts)
    for kind in dict.fromkeys(job.kinds.of):
        if counts[kind]:
            ran[kind] = counts[kind]
            kept += job.kept[kind] * counts[kind]
            gathered = _gathered(job, place, ran, kind)
            moving = _Moving(gradients=gradients, activations=kept, gathered=gathered)
            yield _between(job, place, moving, Stage.FORWARD, job.names[kind])


def _gathered(job: OnePlan, place: int, ran: list[int], kind: int) -> float:
    """Return the gathered parameters and waiting gradients behind a forward."""
    c, element, everything = job.c, element_bytes(job.facts), job.parameters(place)
    units = job.units
    if not gathers(c).all():
        return 0.0
    root = sum(number_of(part, place) for part in local(job.held.load.root, c))
    alone, resharded = (c.pp == 1).all(), np.all(c.reshard_after_forward)
    through = 2 * units[kind]
    if not resharded:
        through = sum(units[each] * count for each, count in enumerate(ran))
        through = through if alone else everything
    waiting = number_of(job.held.waiting, place) if np.all(c.gradient_accumulation_steps > 1) else 0.0
    flying = in_flight(c, number_of(job.held.load.rank, place))
    unreduced = 0.0 if alone or np.all(early(c, flying)) else element.reduce * everything
    return element.compute * (root + min(through, everything - root)) + unreduced + waiting


def _backward(job: OnePlan, place: int) -> tuple[Phase, ...]:
    """Return the moments of backward in their order: of each kind the first repeats and the last."""
    ranks = ranks_of(job.facts.model, job.c)
    starts, counts = ranks.moments, job.counts(place)
    present = [moment for moment in job.moments[1:] if number_of(moment.present, place)]
    most = max((number_of(moment.parts["total"], place) for moment in present), default=0.0)
    found: list[tuple[float, Phase]] = []
    second: dict[int, tuple[float, int, Phase]] = {}
    for moment in present:
        kind, freed = int(starts.kinds[moment.moment]), starts.freed[moment.moment, :, place, 0]
        nth, ran = round(float(freed[kind])) + 1, float(freed.sum())
        ends = moment.when is When.END and bool(starts.last[moment.moment, place, 0])
        repeat = _repeat(moment.when, nth, counts[kind])
        phase = _phase(Stage.BACKWARD, moment, place, job.names[kind], repeat)
        if moment.when is When.COPIED:
            ran += 1
            second[kind] = ran, counts[kind] - nth - 1, phase
        # what is no repeat of its own is told only where the rank peaks
        if moment.when is When.FIRST or ends or repeat[:1].isdigit() or phase.total >= most:
            found.append((sum(counts) if moment.when is When.END else ran, phase))
    unit_by_unit = (gathers(job.c) & (job.c.pp == 1)).all()
    if unit_by_unit or not any(moment.when is When.END for moment in present):
        found += [
            (ran + left, _last(job, kind, left, phase))
            for kind, (ran, left, phase) in second.items()
            if left > 0
        ]
    return tuple(phase for _, phase in sorted(found, key=lambda entry: entry[0]))


def _repeat(when: When, nth: int, many: int) -> str:
    """Return which repeat of its kind a block is, as it is told."""
    if when is When.END:
        return "at the end"
    if when is When.FIRST:
        return f"{nth} of {many}" if many > 1 else ""
    return f"{nth + 1} of {many}" if nth < many else "gradients copied"


def _last(job: OnePlan, kind: int, left: int, second: Phase) -> Phase:
    """Return the last repeat of a kind, so many repeats behind a second one."""
    freed = job.kept[kind] * left
    gathered = 0.0
    if gathers(job.c).all() and not np.any(job.c.reshard_after_forward | (job.c.pp > 1)):
        gathered = element_bytes(job.facts).compute * job.units[kind] * left
    lost = job.facts.stack.fragmentation * (freed + gathered)
    less = {"activations": freed, "transient": gathered, "overhead": lost}
    return replace(
        second,
        repeat=" of ".join([second.repeat.split()[-1]] * 2),
        parts={part: size - round(less.get(part, 0.0)) for part, size in second.parts.items()},
        gathered=second.gathered - round(gathered),
    )


def _reduction(job: OnePlan, place: int) -> Phase:
    """Return the end of backward, at which FSDP2 reduces what is left: the root, under a pipeline all."""
    c, element = job.c, element_bytes(job.facts)
    gradients = number_of(job.held.states["gradients"], place)
    if not gathers(c).all():
        return _between(job, place, _Moving(gradients=gradients), Stage.REDUCTION)
    if (c.pp > 1).all():
        whole = (element.compute + element.reduce) * job.parameters(place)
        return _between(job, place, _Moving(gradients=0.0, gathered=whole), Stage.REDUCTION)
    root = sum(number_of(part, place) for part in local(job.held.load.root, c))
    whole = (element.compute + element.reduce) * root
    return _between(job, place, _Moving(gradients=gradients, gathered=whole), Stage.REDUCTION)
