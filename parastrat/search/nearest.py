"""What would fit if nothing does."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from parastrat.ranks.states import may_fit
from parastrat.search.changes import (
    Changed,
    Fit,
    fewer_nodes,
    halved,
    halvings,
    larger_batch,
    loss_in_chunks,
    more_divisible,
    of_elements,
    smaller_states,
    usual_format,
    within_chunks,
)
from parastrat.search.fastest import able_part, fastest_of, fastest_plan
from parastrat.search.remedies import Remedies
from parastrat.search.room import TRIED, fewest_nodes, on_hosts_and_nodes
from parastrat.search.shorter import longest_fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from parastrat.search.bounded import Searched
    from parastrat.search.changes import ModelAt
    from parastrat.search.rows import Constraints
    from parastrat.search.shorter import Misfit

#: fewer nodes that are tried
_FEWER = 4


def remedies_of(space: Searched, model_at: ModelAt | None, misfit: Misfit) -> Remedies:
    """Return plans that fit after a change.

    Where none alone is enough, states in 8 bits, shorter sequences and more nodes are tried together.

    Args:
        space: what was searched. A change that alters memory alone leaves its meshes and what they take.
        model_at: the model at another sequence length, in another number format.
        misfit: the plan that comes nearest to fitting. How far it is from it tells which lengths to try
            first.
    """
    fits = tuple(fit for fit in _ways(space, model_at, misfit) if fit is not None)
    if not fits:
        fits = tuple(fit for fit in (_together(space, model_at, misfit),) if fit is not None)
    aside = _memory_aside(space) if fits else None
    return Remedies(facts=space.facts, work=space.work, fits=fits, aside=aside)


def _memory_aside(space: Searched) -> Fit | None:
    """Return the fastest plan if memory were no limit, on the devices as they are."""
    plan = fastest_of(replace(space, limited=False))
    return None if plan is None else Fit(changes=("memory is no limit",), facts=space.facts, plan=plan)


def _ways(space: Searched, model_at: ModelAt | None, misfit: Misfit) -> Iterator[Fit | None]:
    facts, fixed = space.facts, space.fixed
    on_hosts, on_nodes = on_hosts_and_nodes(space)
    yield on_hosts
    asked = Changed(changes=(), facts=facts)
    freed = _fitting(asked, _unbound(fixed)) if _unbound(fixed) != fixed else None
    if freed is not None:
        yield replace(freed, changes=(f"drop the fixed flags, {freed.plan.strategy} fits",))
    smaller = smaller_states(asked)
    if smaller is not None:
        yield _fitting_of(replace(space, facts=smaller.facts), smaller.changes)
    chunked, within = loss_in_chunks(asked), within_chunks(fixed)
    yield None if chunked is None or within is None else _fitting(chunked, within)
    for other in (of_elements(asked), more_divisible(asked), larger_batch(asked)):
        yield None if other is None else _fitting(other, fixed)
    if not len(space.allowed.meshes.pp):
        yield _first(islice(fewer_nodes(asked), _FEWER), fixed)
        usual = None if model_at is None else usual_format(asked, model_at)
        yield None if usual is None else _fitting(usual, fixed)
    yield longest_fitting(asked, model_at, fixed, misfit)
    yield on_nodes


def _unbound(fixed: Constraints) -> Constraints:
    """Return what the user settled without what settles the plan: who is to run it stays."""
    return type(fixed)(offload=fixed.offload, plain_loop=fixed.plain_loop, applied=fixed.applied)


def _together(space: Searched, model_at: ModelAt | None, misfit: Misfit) -> Fit | None:
    """Return a plan that fits after several changes, with more nodes where nothing else helps."""
    fixed, asked = space.fixed, Changed(changes=(), facts=space.facts)
    if model_at is not None and not len(space.allowed.meshes.pp):
        asked = usual_format(asked, model_at) or asked
    smaller = smaller_states(asked) or asked
    longest = longest_fitting(smaller, model_at, fixed, misfit)
    if longest is not None:
        return longest
    times = halvings(smaller, model_at)
    shortest = halved(smaller, model_at, times) if model_at is not None and times else smaller
    # a job without a change was tried on as few nodes before
    few = fewest_nodes(shortest, fixed) if shortest.changes else None
    tried = TRIED if asked is shortest or not asked.changes else 0
    return few or fewest_nodes(asked, fixed, first=tried, most=None)


def _first(jobs: Iterable[Changed], fixed: Constraints) -> Fit | None:
    """Return the fastest plan of the first of some jobs that has one."""
    tried = (_fitting(job, fixed) for job in jobs)
    return next((fit for fit in tried if fit is not None), None)


def _fitting(job: Changed, fixed: Constraints) -> Fit | None:
    """Return the fastest plan that fits, with its margin where one does."""
    plan = fastest_plan(job.facts, fixed) if may_fit(job.facts, fixed.offload) else None
    return Fit(changes=job.changes, facts=job.facts, plan=plan) if plan is not None else None


def _fitting_of(space: Searched, changes: tuple[str, ...]) -> Fit | None:
    """Return the fastest plan of a space that fits, with its margin where one does."""
    plan = fastest_of(able_part(space)) if may_fit(space.facts, space.fixed.offload) else None
    return Fit(changes=changes, facts=space.facts, plan=plan) if plan is not None else None
