"""The longest of the halves of a sequence that a job fits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, inf, log2
from typing import TYPE_CHECKING

from parastrat.memory import plan_memory
from parastrat.ranks.states import least_bytes, may_fit
from parastrat.search.changes import Fit, halved, halvings
from parastrat.search.fastest import able_space, all_rows, fastest_of, least_needed
from parastrat.search.judged import Needed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from parastrat.case import Facts
    from parastrat.estimate import MemoryEstimate
    from parastrat.plan import Offload, Plan
    from parastrat.search.bounded import Bounded
    from parastrat.search.changes import Changed, ModelAt
    from parastrat.search.rows import Constraints

#: more halvings than are tried
_OFTEN = 99
#: lengths that are tried by what plans need at two others
_GUESSES = 2


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """The plan of a job that comes nearest to fitting, if any does."""

    facts: Facts
    plan: Plan | None

    @cached_property
    def memory(self) -> MemoryEstimate | None:
        """What it needs, which several changes of the job ask for."""
        return None if self.plan is None else plan_memory(self.facts, self.plan)


def longest_fitting(
    job: Changed, model_at: ModelAt | None, fixed: Constraints, misfit: Misfit
) -> Fit | None:
    """Return the fastest plan at the longest of the halves of a sequence that one fits.

    What fits a sequence fits its half: there is the same plan, with the same micro-batch of shorter
    sequences. So most lengths beside one that fits and one that does not are never searched.

    Args:
        job: what is changed.
        model_at: the model at another length.
        fixed: what the user settled.
        misfit: of the job before the change. It tells which length is tried first.
    """
    most = halvings(job, model_at)
    # states do not hang on sequences
    if model_at is None or not most or not may_fit(job.facts, fixed.offload):
        return None
    often, needs = _of_halves(job.facts, fixed.offload, misfit)
    capacity = job.facts.hardware.device.usable_memory_bytes
    first = min(often, most)
    # how often it was halved in vain, and what the plan needs then that comes nearest to fitting
    failed = [(0, needs)]
    guesses = _guesses(first, most, failed, capacity)
    # the longest that is known to fit, and whether it was guessed to be the longest that does
    shorter, guessed, found = (most + 1, inf), False, None
    while shorter[0] - failed[-1][0] > 1:
        if found is None:
            now = next(guesses)
            # the shortest is tried for what it tells of the others
            guess = now < most
        elif guessed:
            # beside a guess the next longer one most likely does not fit
            now, guess = shorter[0] - 1, False
        else:
            now, guess = _between(failed[-1], shorter, capacity), True
        rows, needed = _tried(halved(job, model_at, now).facts, fixed)
        if needed.fits:
            shorter, found = (now, needed.size), rows
        else:
            failed.append((now, needed.size))
        guessed = needed.fits and guess
    if found is None:
        return None
    changed, plan = halved(job, model_at, shorter[0]), fastest_of(found.space, rows=found)
    return None if plan is None else Fit(changes=changed.changes, facts=found.space.facts, plan=plan)


def _tried(facts: Facts, fixed: Constraints) -> tuple[Bounded | None, Needed]:
    """Return the rows of a job's meshes that may fit, if any, and what ``least_needed`` does of them."""
    space = able_space(facts, fixed)
    if space is None:
        return None, Needed(inf, fits=False)
    rows = all_rows(space)
    return rows, least_needed(rows)


def _guesses(first: int, most: int, failed: Sequence[tuple[int, float]], capacity: int) -> Iterator[int]:
    """Yield how often to halve a sequence, as long as nothing fits: ``failed`` grows meanwhile."""
    yield first
    for _ in range(_GUESSES):
        yield min(max(failed[-1][0] + 1, _enough(failed[-2], failed[-1], capacity)), most)
    # where the shortest does not fit, none does
    yield most


def _between(longer: tuple[int, float], shorter: tuple[int, float], capacity: int) -> int:
    """Return how often to halve a sequence between a length that does not fit and one that does."""
    return min(max(longer[0] + 1, _enough(longer, shorter, capacity)), shorter[0] - 1)


def _of_halves(facts: Facts, offload: Offload, misfit: Misfit) -> tuple[int, float]:
    """Return how often to halve a sequence until the plan next to fitting fits, and what it needs before.

    That is a rough guess: that activations halve, and half of what is transient, of which the other half is
    gathered weights; and that states grow or shrink with an even share of them. Once if there is no plan.
    """
    memory = misfit.memory
    if memory is None:
        return 1, inf
    share = least_bytes(facts, offload) / least_bytes(misfit.facts, offload)
    states = share * (memory.parameters + memory.gradients + memory.optimizer) + memory.overhead
    halves = memory.activations + memory.transient / 2
    room = facts.hardware.device.usable_memory_bytes - states - memory.transient / 2
    often = ceil(log2(max(halves / room, 2.0))) if room > 0 else _OFTEN
    return often, states + memory.activations + memory.transient


def _enough(before: tuple[int, float], after: tuple[int, float], capacity: int) -> int:
    """Return how often to halve a sequence until what plans need fits, by what they needed twice.

    Of that some part halves with the sequence. Often where the rest alone does not fit, or no plan is known
    to need it; never where that is not known of longer sequences. No more often than is likely: of other
    lengths another plan may need less.
    """
    (few, more), (many, less) = before, after
    if more == inf:
        return 0
    halves = (more - less) / (2.0**-few - 2.0**-many)
    room = capacity - less + halves * 2.0**-many
    return round(log2(max(halves / room, 1.0))) if room > 0 else _OFTEN
