"""What would fit if nothing does: the changes, from the one that costs least speed to the dearest.

What a change costs is told against the fastest plan of the job as it was asked, if memory were no limit.
Compared are tokens per second of each device: on the same devices that is the order of step times, and more
devices count for what they pay back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from parastrat.assess import cases_of, estimated, plans_table
from parastrat.columns import Columns, facts_columns
from parastrat.memory.host import host_memory
from parastrat.plan import Offload
from parastrat.ranks.states import least_bytes
from parastrat.result import NearestFit
from parastrat.search.fastest import fastest_of, fastest_plan
from parastrat.search.obeying import offloading
from parastrat.workload import Optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from parastrat.case import Case, Facts
    from parastrat.model import ModelSpec
    from parastrat.plan import Plan
    from parastrat.search.bounded import Searched
    from parastrat.search.rows import Constraints
    from parastrat.workload import Workload

_MOST = 5
_HALVINGS = 6
_DOUBLINGS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A plan that fits a changed job."""

    change: str
    facts: Facts
    plan: Plan


def nearest_fits(
    space: Searched, model_at: Callable[[int], ModelSpec] | None
) -> tuple[tuple[NearestFit, ...], Case | None]:
    """Return up to five plans that fit after a change, those that cost least speed first.

    Beside them stands the plan that their speed is held against; None where rules forbid it.

    Args:
        space: what was searched. A change that alters memory alone leaves its meshes and what they take.
        model_at: the model at another sequence length.
    """
    fits = [fit for fit in _ways(space, model_at) if fit is not None][:_MOST]
    aside = _memory_aside(space) if fits else None
    cases = dict(_assessed(fits if aside is None else [*fits, aside]))
    held_against = None if aside is None else cases[aside.change]
    found = [_against(held_against, fit.change, cases[fit.change]) for fit in fits]
    found.sort(key=lambda fit: fit.case.estimate.tokens_per_s_per_gpu, reverse=True)
    return tuple(found), held_against


def _memory_aside(space: Searched) -> _Fit | None:
    """Return the fastest plan if memory were no limit, on the devices as they are."""
    plan = fastest_of(replace(space, limited=False))
    return None if plan is None else _Fit(change="memory is no limit", facts=space.facts, plan=plan)


def _against(aside: Case | None, change: str, case: Case) -> NearestFit:
    if aside is None:
        return NearestFit(changes=(change,), case=case)
    each = case.estimate.tokens_per_s_per_gpu / aside.estimate.tokens_per_s_per_gpu
    devices = case.plan.mesh.world_size / aside.plan.mesh.world_size
    return NearestFit(changes=(change,), case=case, speed=each * devices, speed_each=each)


def _assessed(fits: Sequence[_Fit]) -> Iterator[tuple[str, Case]]:
    """Yield the plans as cases by their change.

    Those that differ in the number of nodes alone are estimated together: memory and time do not hang on
    nodes that a plan leaves idle.
    """
    several: dict[tuple[int, Workload], list[_Fit]] = {}
    for fit in fits:
        several.setdefault((id(fit.facts.model), fit.facts.workload), []).append(fit)
    for alike in several.values():
        widest = max((fit.facts for fit in alike), key=lambda facts: facts.hardware.num_nodes)
        table = plans_table([fit.plan for fit in alike])
        found = estimated(widest, Columns(facts_columns(widest) | table))
        for row, fit in enumerate(alike):
            yield fit.change, cases_of(fit.facts, (fit.plan,), found, row)[0]


def _ways(space: Searched, model_at: Callable[[int], ModelSpec] | None) -> Iterator[_Fit | None]:
    facts, fixed = space.facts, space.fixed
    for offload in (Offload.OPTIMIZER, Offload.PARAMETERS):
        if facts.hardware.device.host_bytes_per_s is not None and fixed.offload is Offload.NONE:
            change = f"offload the {offload.value} to host memory"
            changed, allowed = replace(fixed, offload=offload), offloading(space.allowed, offload)
            fit = _fitting_of(replace(space, fixed=changed, allowed=allowed), change)
            host = None if fit is None else host_memory(facts, fit.plan)
            if fit is not None and not (host and host.exceeded):
                yield fit
                break
    freed = _fitting(facts, _unbound(fixed), "") if _unbound(fixed) != fixed else None
    if freed is not None:
        yield replace(freed, change=f"drop the fixed flags, {freed.plan.strategy} fits")
    yield _smaller_states(space)
    yield _shorter(facts, fixed, model_at)
    yield _more_nodes(facts, fixed)


def _unbound(fixed: Constraints) -> Constraints:
    return type(fixed)(offload=fixed.offload, plain_loop=fixed.plain_loop)


def _smaller_states(space: Searched) -> _Fit | None:
    """Return a plan whose optimizer keeps its states in 8 bits."""
    workload = space.facts.workload
    if workload.optimizer is not Optimizer.ADAMW:
        return None
    chosen = Optimizer.ADAMW_8BIT
    assumed = tuple(name for name in workload.assumed if name != "optimizer")
    changed = replace(space.facts, workload=replace(workload, optimizer=chosen, assumed=assumed))
    change = f"optimizer {chosen.value} instead of {workload.optimizer.value}"
    return _fitting_of(replace(space, facts=changed), change)


def _shorter(facts: Facts, fixed: Constraints, model_at: Callable[[int], ModelSpec] | None) -> _Fit | None:
    """Return the longest power-of-two fraction of the sequence that fits, the batch's tokens kept."""
    length = facts.workload.sequence_length
    if model_at is None or length is None or not _may_fit(facts, fixed):
        return None
    for halving in range(1, _HALVINGS + 1):
        short = length // 2**halving
        if short < 1:
            return None
        workload = replace(
            facts.workload,
            sequence_length=short,
            global_batch_size=facts.workload.global_batch_size * 2**halving,
        )
        change = f"sequences of {short:,} tokens instead of {length:,}"
        fit = _fitting(replace(facts, model=model_at(short), workload=workload), fixed, change)
        if fit is not None:
            return fit
    return None


def _more_nodes(facts: Facts, fixed: Constraints) -> _Fit | None:
    """Return the fewest nodes, by doubling, on which a plan fits."""
    hardware = facts.hardware
    if hardware.scale_out is None:
        return None
    for doubling in range(1, _DOUBLINGS + 1):
        nodes = hardware.num_nodes * 2**doubling
        more = replace(hardware, num_nodes=nodes, name=f"{hardware.name.split(':')[0]}:{nodes}")
        change = f"{nodes} nodes instead of {hardware.num_nodes}"
        fit = _fitting(replace(facts, hardware=more), fixed, change)
        if fit is not None:
            return fit
    return None


def _fitting(facts: Facts, fixed: Constraints, change: str) -> _Fit | None:
    """Return the fastest plan that fits, with its margin where one does."""
    plan = fastest_plan(facts, fixed) if _may_fit(facts, fixed) else None
    return _Fit(change=change, facts=facts, plan=plan) if plan is not None else None


def _fitting_of(space: Searched, change: str) -> _Fit | None:
    """Return the fastest plan of a space that fits, with its margin where one does."""
    plan = fastest_of(space) if _may_fit(space.facts, space.fixed) else None
    return _Fit(change=change, facts=space.facts, plan=plan) if plan is not None else None


def _may_fit(facts: Facts, fixed: Constraints) -> bool:
    """Return whether an even share of the states fits, which does not hang on sequences."""
    return least_bytes(facts, fixed.offload) <= facts.hardware.device.usable_memory_bytes
