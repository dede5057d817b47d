"""Where a job that has no plan finds room: in its hosts' memory, and on more nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from parastrat.plan import Offload
from parastrat.ranks.states import may_fit
from parastrat.search.changes import Changed, Fit, more_nodes
from parastrat.search.fastest import (
    able_meshes,
    able_part,
    able_space,
    all_rows,
    fastest_of,
    fastest_plan,
    least_needed,
)
from parastrat.search.obeying import offloading
from parastrat.search.of_each import fastest_of_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parastrat.plan import Plan
    from parastrat.search.bounded import Searched
    from parastrat.search.rows import Constraints

#: numbers of nodes that are tried, from where an even share of the states fits
TRIED = 4

#: what hosts may keep beside what they do, the least first
_MORE = {
    Offload.NONE: (Offload.OPTIMIZER, Offload.PARAMETERS),
    Offload.OPTIMIZER: (Offload.PARAMETERS,),
    Offload.PARAMETERS: (),
}


def on_hosts_and_nodes(space: Searched) -> tuple[Fit | None, Fit | None]:
    """Return the fastest plan that fits with the least kept on hosts, and that on the fewest nodes.

    What is tried first of either is searched together: some plans take little longer than half of them do.
    """
    asked, fixed = Changed(changes=(), facts=space.facts), space.fixed
    hosts, nodes = _on_hosts(space), _on_nodes(asked, fixed, 0, TRIED)
    host, node = next(hosts, None), next(nodes, None)
    if host is None or node is None:
        on_host = None if host is None else fastest_of(host[1])
        on_node = None if node is None else fastest_plan(node.facts, fixed)
    else:
        jobs = host[1].allowed.meshes, able_meshes(node.facts, fixed)
        on_host, on_node = fastest_of_each(jobs, node.facts, fixed, space.work)
    fit_on_host = None if host is None else _fit(host[0], on_host)
    fit_on_node = None if node is None else _fit(node, on_node)
    return fit_on_host or _first_on_hosts(hosts), fit_on_node or _first_fitting(nodes, fixed)


def fewest_nodes(
    job: Changed, fixed: Constraints, *, first: int = 0, most: int | None = TRIED
) -> Fit | None:
    """Return the fastest plan on the fewest nodes, by doubling, that one fits.

    From where an even share of the states fits only so many doublings are tried: each leaves half of the
    states, and what is left then is activations, which further nodes free next to no room for. Those before
    the ``first`` are known not to help.
    """
    return _first_fitting(_on_nodes(job, fixed, first, most), fixed)


def _on_hosts(space: Searched) -> Iterator[tuple[Changed, Searched]]:
    """Yield the job with more on its hosts, and its meshes that may fit then, where there are any."""
    if space.facts.hardware.device.host_bytes_per_s is None:
        return
    for offload in _MORE[space.fixed.offload]:
        if may_fit(space.facts, offload):
            fixed, allowed = replace(space.fixed, offload=offload), offloading(space.allowed, offload)
            able = able_part(replace(space, fixed=fixed, allowed=allowed))
            change = f"offload the {offload.value} to host memory"
            if len(able.allowed.meshes.pp):
                yield Changed(changes=(change,), facts=space.facts), able


def _on_nodes(job: Changed, fixed: Constraints, first: int, most: int | None) -> Iterator[Changed]:
    """Yield the job on more nodes, of those on which an even share of the states fits."""
    return islice((more for more in more_nodes(job) if may_fit(more.facts, fixed.offload)), first, most)


def _first_on_hosts(jobs: Iterator[tuple[Changed, Searched]]) -> Fit | None:
    """Return the fastest plan of the first of some jobs that has one."""
    fits = (_fit(job, fastest_of(space)) for job, space in jobs)
    return next((fit for fit in fits if fit is not None), None)


def _first_fitting(jobs: Iterator[Changed], fixed: Constraints) -> Fit | None:
    """Return the fastest plan of the first of some jobs that has one.

    Whether a job has any is told sooner than which is the fastest.
    """
    for job in jobs:
        space = able_space(job.facts, fixed)
        if space is None:
            continue
        rows = all_rows(space)
        if least_needed(rows).fits:
            return _fit(job, fastest_of(space, rows=rows))
    return None


def _fit(job: Changed, plan: Plan | None) -> Fit | None:
    return None if plan is None else Fit(changes=job.changes, facts=job.facts, plan=plan)
