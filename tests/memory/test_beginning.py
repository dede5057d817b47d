"""What FSDP2 holds as a later micro-batch's forward begins, by hand."""

from __future__ import annotations

from typing import Any

from jobs import block, job, plan

from parastrat.assess import plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.hardware import DeviceType
from parastrat.memory import PARTS, memory_columns, memory_totals, plan_memory
from parastrat.memory.one_plan import one_plan
from parastrat.memory.phases import Stage, memory_by_phase
from parastrat.model import Parameters
from parastrat.plan import Plan, Shard
from parastrat.tables import facts_columns
from parastrat.workload import Optimizer, Precision

#: parameters of the table, which is the root's, and of a unit
ROOT, UNIT = 5000, 1000
HOST = {"type": DeviceType.CPU}


def facts(**changes: Any) -> Facts:
    parameters = [(Parameters(trainable=count),) for count in (UNIT, ROOT)]
    return job(
        block(parameters=parameters[1], unit=False, name="table"),
        block(parameters=parameters[0], repeat=2),
        optimizer=Optimizer.SGD,
        precision=Precision.BF16_MIXED,
        stack={"fragmentation": 0.0, "context_bytes": 0},
        **changes,
    )


def sharded(steps: int, **changes: Any) -> Plan:
    return plan(dp_shard=4, shard=Shard.PARAMETERS, gradient_accumulation_steps=steps, **changes)


def memory(given: Facts, chosen: Plan) -> MemoryEstimate:
    return plan_memory(given, chosen)


def test_root_and_first_unit_are_there_twice_beside_the_roots_gradients() -> None:
    found = memory(facts(device=HOST), sharded(2))
    assert found.transient == 4 * ROOT + 2 * 2 * (ROOT + UNIT)
    assert found.activations == 0
    (rank,) = memory_by_phase(facts(device=HOST), sharded(2))
    assert (rank.peak.stage, rank.peak.total) == (Stage.FORWARD, found.total)


def test_in_a_first_micro_batch_nothing_waits() -> None:
    assert memory(facts(device=HOST), sharded(1)).transient < 4 * ROOT + 2 * 2 * ROOT


def test_an_allocator_that_keeps_what_was_gathered_peaks_in_backward() -> None:
    given = facts()
    found = memory(given, sharded(2))
    # of the root its gradients wait; gathered it is once, and once idle
    assert found.transient < 4 * ROOT + 2 * 2 * ROOT
    (rank,) = one_plan(given, sharded(2)).ranks
    assert rank.beginning is not None
    assert rank.beginning.parts["transient"] == 4 * ROOT + 2 * 2 * (ROOT + UNIT)
    assert rank.beginning.total <= found.total


def test_in_columns_it_is_as_in_each_plan_alone() -> None:
    given = facts(device=HOST)
    several = [
        sharded(steps, **changes)
        for steps in (1, 2, 3)
        for changes in ({}, {"micro_batch_size": 3}, {"reshard_after_forward": False}, {"tp": 2})
    ]
    columns = Columns({**facts_columns(given), **plans_table(several)})
    found, totals = memory_columns(given, columns), memory_totals(given, columns)
    for row, each in enumerate(several):
        alone = plan_memory(given, each)
        assert [found[part][row] for part in PARTS] == [getattr(alone, part) for part in PARTS]
        assert abs(totals[row] - alone.total) <= len(PARTS)
