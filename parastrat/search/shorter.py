"""The longest of the halves of a sequence that a job fits."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf, log2
from typing import TYPE_CHECKING

from parastrat.memory import plan_memory
from parastrat.ranks.states import least_bytes, may_fit
from parastrat.search.changes import Fit, halved, halvings
from parastrat.search.fastest import able_space, all_rows, fastest_of, nearest_misfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Facts
    from parastrat.plan import Offload, Plan
    from parastrat.search.bounded import Bounded
    from parastrat.search.changes import Changed, ModelAt
    from parastrat.search.rows import Constraints

#: more halvings than are tried
_OFTEN = 99
#: lengths that are tried by what plans need at two others
_GUESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfits:
    """Plans of a job that come near to fitting."""

    facts: Facts
    plans: Sequence[Plan]


def longest_fitting(
    job: Changed, model_at: ModelAt | None, fixed: Constraints, misfits: Misfits
) -> Fit | None:
    """Return the fastest plan at the longest of the halves of a sequence that one fits.

    What fits a sequence fits its half: there is the same plan, with the same micro-batch of shorter
    sequences. So most lengths beside one that fits and one that does not are never searched.

    Args:
        job: what is changed.
        model_at: the model at another length.
        fixed: what the user settled.
        misfits: of the job before the change. They tell which length is tried first.
    """
    most = halvings(job, model_at)
    # states do not hang on sequences
    if model_at is None or not most or not may_fit(job.facts, fixed.offload):
        return None
    first, needs = _first_guess(job.facts, fixed.offload, misfits)
    if first > 1 and _tried(halved(job, model_at, most).facts, fixed)[1] is not None:
        # where a half is not likely to be enough mostly no length is, which the shortest tells
        return None
    # how often it was halved in vain, and what the plan needs then that comes nearest to fitting
    failed = [(0, needs)]
    guesses = _guesses(first, most, failed, job.facts.hardware.device.usable_memory_bytes)
    # what is longer is known not to fit, and what is shorter to fit
    longer, shorter, guess, found = 0, most + 1, 0, None
    while shorter - longer > 1:
        if found is None:
            now = guess = next(guesses)
        else:
            # beside a guess the next longer one most likely does not fit
            now = shorter - 1 if shorter == guess else (longer + shorter) // 2
        rows, misfit = _tried(halved(job, model_at, now).facts, fixed)
        if misfit is None:
            shorter, found = now, rows
        else:
            longer = now
            failed.append((now, misfit))
    if found is None:
        return None
    changed, plan = halved(job, model_at, shorter), fastest_of(found.space, rows=found)
    return None if plan is None else Fit(changes=changed.changes, facts=found.space.facts, plan=plan)


def _tried(facts: Facts, fixed: Constraints) -> tuple[Bounded | None, float | None]:
    """Return the rows of a job's meshes that may fit, if any, and what ``nearest_misfit`` does of them."""
    space = able_space(facts, fixed)
    if space is None:
        return None, inf
    rows = all_rows(space)
    return rows, nearest_misfit(rows)


def _guesses(first: int, most: int, failed: Sequence[tuple[int, float]], capacity: int) -> Iterator[int]:
    """Yield how often to halve a sequence, as long as nothing fits: ``failed`` grows meanwhile."""
    yield min(first, most)
    for _ in range(_GUESSES):
        yield min(_further_guess(failed[-2], failed[-1], capacity), most)
    # where the shortest does not fit, none does
    yield most


def _first_guess(facts: Facts, offload: Offload, misfits: Misfits) -> tuple[int, float]:
    """Return how often to halve a sequence until one of some plans may fit, by a rough guess.

    That is if activations and what is transient halve, and states grow or shrink with an even share of
    them. Once where there are no plans; and often where the rest alone does not fit.
    Beside it stands what the least of the plans needs before.
    """
    share, capacity = least_bytes(facts, offload), facts.hardware.device.usable_memory_bytes
    times, needs = [], []
    before = least_bytes(misfits.facts, offload)
    for plan in misfits.plans:
        memory = plan_memory(misfits.facts, plan)
        states = memory.parameters + memory.gradients + memory.optimizer
        stays = states * share / before + memory.overhead
        halves, room = memory.activations + memory.transient, capacity - memory.margin - stays
        times.append(ceil(log2(max(halves / room, 2))) if room > 0 else _OFTEN)
        needs.append(stays + halves)
    return min(times, default=1), min(needs, default=inf)


def _further_guess(before: tuple[int, float], after: tuple[int, float], capacity: int) -> int:
    """Return how often to halve a sequence until what plans need fits, by what they needed twice before.

    Of that some part halves with the sequence. Often where the rest alone does not fit, or no plan is known
    to need it; once more where that is not known of whole sequences. No more often than is likely: of
    shorter ones another plan may need less.
    """
    (few, more), (many, less) = before, after
    if more == inf:
        return many + 1
    halves = (more - less) / (2.0**-few - 2.0**-many)
    room = capacity - less + halves * 2.0**-many
    return max(many + 1, round(log2(max(halves / room, 1.0)))) if room > 0 else _OFTEN
