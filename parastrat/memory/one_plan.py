"""One plan, and what its pipeline ranks hold at the moments of a step, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from parastrat.memory.activations import kinds_bytes
from parastrat.memory.alone import plan_alone, ranks_of
from parastrat.memory.backward import moving_of, ways_of
from parastrat.memory.gathered import EVERY_WAY, ONCE, When
from parastrat.memory.held import rank_held, ranks_read
from parastrat.memory.in_forward import in_forward
from parastrat.memory.parts import PARTS, backward_parts, forward_parts, lacking_of, step_parts
from parastrat.memory.plans import job_of
from parastrat.ranks import block_kinds
from parastrat.ranks.division import divided_total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Facts
    from parastrat.memory.activations import KindBytes
    from parastrat.memory.backward import Moving
    from parastrat.memory.held import RankHeld
    from parastrat.memory.plans import Plans
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.ranks.kinds import Kinds
    from parastrat.ranks.spread import Rank
    from parastrat.ranks.turning import Turning


@dataclass(frozen=True, slots=True, kw_only=True)
class MomentHeld:
    """What a rank holds at one moment at which it may peak, bytes."""

    #: the block that runs backward, a ``Start``; None: the optimizer steps
    start: Any
    #: of the block's repeats in backward
    when: When
    #: ``PARTS``
    parts: dict[str, float]
    #: of the transient
    gathered: float = 0.0
    running: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRank:
    """A pipeline rank of one plan."""

    rank: Rank
    held: RankHeld
    #: the optimizer step, then those of backward
    moments: tuple[MomentHeld, ...]
    #: as a forward gathers its first unit, and its last; None of those that cannot be most
    gathering: tuple[MomentHeld | None, ...]

    @property
    def counts(self) -> list[int]:
        """The repeats of each kind."""
        return [round(count) for count in self.rank.load.repeats]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePlan:
    """One plan and its distinct ranks."""

    facts: Facts
    plans: Plans
    ranks: tuple[OneRank, ...]
    kinds: Kinds
    #: of the blocks of each kind
    names: tuple[str, ...]
    #: of one micro-batch by one repeat of each kind, bytes
    kept: tuple[float, ...]

    def parameters(self, rank: OneRank) -> float:
        """Return the parameters that tp and ep leave on a rank."""
        load = rank.rank.load
        return float(
            sum(divided_total(each, self.plans.division) for each in (load.trainable, load.frozen))
        )

    @property
    def units(self) -> tuple[float, ...]:
        """The parameters of one repeat of each kind of unit on a rank."""
        kinds = self.plans.kinds.each[0]
        return tuple(float(divided_total(kind.unit, self.plans.division)) for kind in kinds)


def one_plan(facts: Facts, plan: Plan) -> OnePlan:
    """Return a plan with what its distinct pipeline ranks hold."""
    plans = plan_alone(job_of(facts), plan)
    kinds, blocks = kinds_bytes(plans), block_kinds(facts.model)
    ranks, turning = ranks_of(plans)
    return OnePlan(
        facts=facts,
        plans=plans,
        ranks=tuple(_held(plans, kinds, rank, turning) for rank in ranks),
        kinds=blocks,
        names=_names(facts.model, blocks),
        kept=tuple(float(each) for each in kinds.kept),
    )


def _names(model: ModelSpec, kinds: Kinds) -> tuple[str, ...]:
    named: dict[int, list[str]] = {}
    for kind, block in zip(kinds.of, model.blocks, strict=True):
        named.setdefault(kind, []).append(block.name)
    return tuple(" and ".join(dict.fromkeys(named[kind])) for kind in range(len(named)))


def _held(plans: Plans, kinds: KindBytes, rank: Rank, turning: Turning | None) -> OneRank:
    held = rank_held(plans, kinds, rank, ranks_read(plans, None))
    step = MomentHeld(start=None, when=When.END, parts=_named(step_parts(plans, held)))
    # the second repeats are told wherever a rank peaks, and the end where gradients come one by one
    ended = plans.alike.one_by_one or ways_of(plans, held) is not ONCE
    ways = EVERY_WAY if ended else EVERY_WAY[:2]
    backward = (_moments(plans, kinds, (rank, held), turning, way) for way in ways)
    return OneRank(
        rank=rank,
        held=held,
        moments=(step, *(each for own in backward for each in own)),
        gathering=_gathering(plans, kinds, rank, held),
    )


def _gathering(plans: Plans, kinds: KindBytes, rank: Rank, held: RankHeld) -> tuple[MomentHeld | None, ...]:
    return tuple(
        MomentHeld(
            start=None,
            when=When.FIRST,
            parts=_named(forward_parts(plans, held, each)),
            gathered=each.transient,
        )
        if each.total
        else None
        for each in in_forward(plans, kinds, rank, held.waits)
    )


def _moments(
    plans: Plans, kinds: KindBytes, at: tuple[Rank, RankHeld], turning: Turning | None, when: When
) -> Iterator[MomentHeld]:
    rank, held = at
    for start in rank.starts:
        ways: Sequence[When] = (when,)
        moving = moving_of(plans, kinds, held, start, turning, ways)
        if not isfinite(moving.freed[0]):
            continue
        lacking = lacking_of(plans, held, rank.counts, start, moving)
        yield MomentHeld(
            start=start,
            when=when,
            parts=_named(backward_parts(plans, held, moving, lacking)),
            gathered=_gathered(moving),
            running=moving.running,
        )


def _gathered(moving: Moving) -> float:
    """Return what is gathered and not reduced, as far as it meets what the running block reads."""
    if moving.gathered is None:
        return 0.0
    return float(moving.gathered[0] - moving.never - (moving.not_yet[0] if moving.not_yet else 0.0))


def _named(parts: Sequence[float]) -> dict[str, float]:
    return dict(zip(PARTS, parts, strict=True))
