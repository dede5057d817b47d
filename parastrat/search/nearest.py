"""What would fit if nothing does: the changes, from the cheapest to the dearest."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parastrat.assess import assess
from parastrat.plan import Offload
from parastrat.result import NearestFit
from parastrat.search.survey import fastest_plan
from parastrat.states import least_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from parastrat.case import Case, Facts
    from parastrat.model import ModelSpec
    from parastrat.search.rows import Constraints

_MOST = 5
_HALVINGS = 6
_DOUBLINGS = 10


def nearest_fits(
    facts: Facts, fixed: Constraints, model_at: Callable[[int], ModelSpec] | None
) -> tuple[NearestFit, ...]:
    """Return up to five plans that fit after a change; those that cost no machines and no tokens first."""
    found = [fit for fits in _ways(facts, fixed, model_at) for fit in fits]
    return tuple(found[:_MOST])


def _ways(
    facts: Facts, fixed: Constraints, model_at: Callable[[int], ModelSpec] | None
) -> Iterator[list[NearestFit]]:
    for offload in (Offload.OPTIMIZER, Offload.PARAMETERS):
        if facts.hardware.device.host_bytes_per_s is not None and fixed.offload is Offload.NONE:
            case = _fitting(facts, replace(fixed, offload=offload))
            if case is not None:
                yield [NearestFit(changes=(f"offload the {offload.value} to host memory",), case=case)]
                break
    freed = _fitting(facts, _unbound(fixed)) if _unbound(fixed) != fixed else None
    if freed is not None:
        yield [NearestFit(changes=(f"drop the fixed flags: {freed.plan.strategy} fits",), case=freed)]
    yield _shorter(facts, fixed, model_at)
    yield _more_nodes(facts, fixed)


def _unbound(fixed: Constraints) -> Constraints:
    return type(fixed)(offload=fixed.offload, plain_loop=fixed.plain_loop)


def _shorter(
    facts: Facts, fixed: Constraints, model_at: Callable[[int], ModelSpec] | None
) -> list[NearestFit]:
    """Return the longest power-of-two fraction of the sequence that fits, the batch's tokens kept."""
    length = facts.workload.sequence_length
    if model_at is None or length is None or not _may_fit(facts, fixed):
        return []
    for halving in range(1, _HALVINGS + 1):
        short = length // 2**halving
        if short < 1:
            return []
        workload = replace(
            facts.workload,
            sequence_length=short,
            global_batch_size=facts.workload.global_batch_size * 2**halving,
        )
        case = _fitting(replace(facts, model=model_at(short), workload=workload), fixed)
        if case is not None:
            return [
                NearestFit(changes=(f"sequences of {short:,} tokens instead of {length:,}",), case=case)
            ]
    return []


def _more_nodes(facts: Facts, fixed: Constraints) -> list[NearestFit]:
    """Return the fewest nodes, by doubling, on which a plan fits."""
    hardware = facts.hardware
    if hardware.scale_out is None:
        return []
    for doubling in range(1, _DOUBLINGS + 1):
        nodes = hardware.num_nodes * 2**doubling
        more = replace(hardware, num_nodes=nodes, name=f"{hardware.name.split(':')[0]}:{nodes}")
        case = _fitting(replace(facts, hardware=more), fixed)
        if case is not None:
            change = f"{nodes} nodes instead of {hardware.num_nodes}"
            return [NearestFit(changes=(change,), case=case)]
    return []


def _fitting(facts: Facts, fixed: Constraints) -> Case | None:
    """Return the fastest plan that fits, with its margin where one does."""
    if not _may_fit(facts, fixed):
        return None
    plan = fastest_plan(facts, fixed)
    return assess(facts, plan) if plan is not None else None


def _may_fit(facts: Facts, fixed: Constraints) -> bool:
    """Return whether an even share of the states fits, which does not hang on sequences."""
    return least_bytes(facts, fixed.offload) <= facts.hardware.device.usable_memory_bytes
