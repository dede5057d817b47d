"""What a rank holds through a step, phase by phase, for one plan that is shown.

The phases at which memory may peak are those of ``peaks``, so that the largest of them is the estimate;
those between are put together from the same parts. They tell a step's last micro-batch, when most is held.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from typing import TYPE_CHECKING

from parastrat.memory.gathered import When
from parastrat.memory.one_plan import one_plan
from parastrat.memory.parts import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.case import Facts
    from parastrat.memory.one_plan import MomentHeld, OnePlan, OneRank
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
    #: repeats of each block that have run backward before, and keep nothing any more
    freed: dict[str, int] = field(default_factory=dict)

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
    #: a pipeline's buffers for what its stages receive, of all micro-batches; part of the transient
    messages: int = 0
    phases: tuple[Phase, ...]

    @property
    def peak(self) -> Phase:
        """The phase that holds most; of equal ones the first."""
        return max(self.phases, key=lambda phase: phase.total)


def memory_by_phase(facts: Facts, plan: Plan) -> tuple[RankMemory, ...]:
    """Return what each distinct pipeline rank of a plan holds through a step."""
    job = one_plan(facts, plan)
    return tuple(_rank_memory(job, rank) for rank in job.ranks)


def _rank_memory(job: OnePlan, rank: OneRank) -> RankMemory:
    return RankMemory(
        rank=round(rank.rank.load.rank),
        blocks={name: count for name, count in zip(job.names, rank.counts, strict=True) if count},
        in_flight=float(rank.held.flying),
        kept={name: ceil(kept) for name, kept in zip(job.names, job.kept, strict=True)},
        messages=ceil(rank.held.buffers),
        phases=(
            *_forward(job, rank),
            *_backward(job, rank),
            _reduction(job, rank),
            _phase(Stage.STEP, rank.moments[0]),
        ),
    )


def _phase(stage: Stage, moment: MomentHeld, block: str = "", repeat: str = "") -> Phase:
    return Phase(
        stage=stage,
        block=block,
        repeat=repeat,
        parts={part: ceil(size) for part, size in moment.parts.items()},
        gathered=ceil(moment.gathered),
        running=ceil(moment.running),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moving:
    """What comes and goes, bytes."""

    gradients: float
    activations: float = 0.0
    gathered: float = 0.0


def _between(job: OnePlan, rank: OneRank, moving: _Moving, stage: Stage, block: str = "") -> Phase:
    """Return a phase at which no rank peaks, put together as those at which one may."""
    constants, held = job.plans.job, rank.held
    states = {name: getattr(held.states, name) for name in ("parameters", "gradients", "optimizer")}
    sharded = job.plans.alike.shards
    states["parameters"] += constants.buffers
    idle = (states["gradients"] - moving.gradients) * constants.flags.pooled if sharded else 0.0
    transient = moving.gathered + held.buffers
    lost = job.facts.stack.fragmentation * (moving.activations + transient)
    parts = {
        **states,
        "gradients": moving.gradients,
        "activations": moving.activations,
        "transient": transient,
        "overhead": constants.context + held.pool + idle + lost,
    }
    own = {part: ceil(parts[part]) for part in PARTS}
    return Phase(stage=stage, block=block, parts=own, gathered=ceil(moving.gathered))


def _forward(job: OnePlan, rank: OneRank) -> Iterator[Phase]:
    """Yield what is held between steps, and behind the forward of each kind of block."""
    counts = rank.counts
    # a rank of more stages than there are blocks may have none of these
    standing, backward = rank.held.states.gradients, rank.moments[1:]
    gradients = min((moment.parts["gradients"] for moment in backward), default=standing)
    # sharded gradients are freed behind the optimizer, those of DDP are views of its buckets
    at_rest = 0.0 if job.plans.alike.shards else gradients
    yield _between(job, rank, _Moving(gradients=at_rest), Stage.REST)
    gathering = _units_gathered(job, rank)
    if "gathered first" in gathering:
        yield gathering["gathered first"]
    one = sum(kept * count for kept, count in zip(job.kept, counts, strict=True))
    before = rank.held.flying * (one + rank.held.masks) - one
    if job.plans.alike.turns:
        before = max((moment.parts["activations"] for moment in backward), default=0.0) - one
    kept, ran = max(before, 0.0), [0] * len(counts)
    for kind in dict.fromkeys(job.kinds.of):
        if counts[kind]:
            if (last := gathering.get("gathered last")) is not None and last.block == job.names[kind]:
                yield last
            ran[kind] = counts[kind]
            kept += job.kept[kind] * counts[kind]
            gathered = _gathered(job, rank, ran, kind)
            moving = _Moving(gradients=gradients, activations=kept, gathered=gathered)
            yield _between(job, rank, moving, Stage.FORWARD, job.names[kind])


def _units_gathered(job: OnePlan, rank: OneRank) -> dict[str, Phase]:
    """Return the phases in which a unit of a forward is gathered, if a rank may peak there."""
    units = [kind for kind in job.kinds.of if job.kinds.units[kind]]
    if not rank.held.forward:
        return {}
    which = {"gathered first": units[0], "gathered last": units[-1]}
    moments = zip(which, rank.gathering, strict=False)
    return {
        repeat: _phase(Stage.FORWARD, moment, job.names[which[repeat]], repeat)
        for repeat, moment in moments
        if moment is not None
    }


def _gathered(job: OnePlan, rank: OneRank, ran: list[int], kind: int) -> float:
    """Return the gathered parameters and waiting gradients behind a forward."""
    alike, element, everything = job.plans.alike, job.plans.job.element, job.parameters(rank)
    units, at = job.units, rank.held
    if not alike.gathers:
        return 0.0
    through = 2 * units[kind]
    if not job.plans.reshards:
        through = sum(units[each] * count for each, count in enumerate(ran))
        through = everything if alike.piped else through
    unreduced = element.reduce * everything if alike.piped and not at.early else 0.0
    gathered = element.compute * (at.root + min(through, everything - at.root))
    return float(gathered + unreduced + at.waiting)


def _backward(job: OnePlan, rank: OneRank) -> tuple[Phase, ...]:
    """Return the moments of backward in their order: of each kind the first repeats and the last."""
    counts, present = rank.counts, rank.moments[1:]
    most = max((moment.total for moment in present), default=0.0)
    found: list[tuple[float, Phase]] = []
    second: dict[int, tuple[float, int, Phase]] = {}
    for moment in present:
        kind, freed = moment.start.place, dict(moment.start.freed)
        ran = float(sum(freed.values()))
        nth = round(freed.get(kind, 0)) + 1
        ends = moment.when is When.END and moment.start.last
        repeat = _repeat(moment.when, nth, counts[kind])
        phase = _phase(Stage.BACKWARD, moment, job.names[kind], repeat)
        phase = replace(phase, freed={job.names[own]: round(count) for own, count in freed.items()})
        if moment.when is When.COPIED:
            ran += 1
            second[kind] = ran, counts[kind] - nth - 1, phase
        # what is no repeat of its own is told only where the rank peaks
        if moment.when is When.FIRST or ends or repeat[:1].isdigit() or phase.total >= most:
            found.append((sum(counts) if moment.when is When.END else ran, phase))
    unit_by_unit = job.plans.alike.gathers and not job.plans.alike.piped
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
    freed, alike = job.kept[kind] * left, job.plans.alike
    gathered = 0.0
    if alike.gathers and not (job.plans.reshards or alike.piped):
        gathered = job.plans.job.element.compute * job.units[kind] * left
    lost = job.facts.stack.fragmentation * (freed + gathered)
    less = {"activations": freed, "transient": gathered, "overhead": lost}
    return replace(
        second,
        repeat=" of ".join([second.repeat.split()[-1]] * 2),
        parts={part: size - round(less.get(part, 0.0)) for part, size in second.parts.items()},
        gathered=second.gathered - round(gathered),
    )


def _reduction(job: OnePlan, rank: OneRank) -> Phase:
    """Return the end of backward, at which FSDP2 reduces what is left: the root, under a pipeline all."""
    alike, element, gradients = job.plans.alike, job.plans.job.element, rank.held.states.gradients
    if not alike.gathers:
        return _between(job, rank, _Moving(gradients=gradients), Stage.REDUCTION)
    if alike.piped:
        whole = (element.compute + element.reduce) * job.parameters(rank)
        return _between(job, rank, _Moving(gradients=0.0, gathered=whole), Stage.REDUCTION)
    whole = (element.compute + element.reduce) * rank.held.root
    return _between(job, rank, _Moving(gradients=gradients, gathered=whole), Stage.REDUCTION)
