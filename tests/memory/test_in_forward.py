"""What FSDP2 holds as a forward gathers a unit, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from jobs import block, job, plan

from parastrat.assess import plans_table
from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.estimate import MemoryEstimate
from parastrat.hardware import DeviceType
from parastrat.memory import PARTS, memory_columns, memory_totals, plan_memory
from parastrat.memory.one_plan import one_plan
from parastrat.memory.phases import Stage, memory_by_phase
from parastrat.model import Parameters, Split
from parastrat.plan import PipelineSchedule, Plan, Recompute, Shard
from parastrat.saved import Activations, Saved
from parastrat.tables import facts_columns
from parastrat.workload import Optimizer, Precision

#: parameters of the table, which is the root's, and of a unit
ROOT, UNIT = 5000, 1000
#: and of a table that is small beside units
TABLE = 500
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
    assert rank.gathering[0] is not None
    assert rank.gathering[0].parts["transient"] == 4 * ROOT + 2 * 2 * (ROOT + UNIT)
    assert rank.gathering[0].total <= found.total


def last(facts_: Facts, chosen: Plan) -> dict[str, float]:
    """Return the parts of what is held as the last unit is gathered."""
    (rank,) = one_plan(facts_, chosen).ranks
    moment = rank.gathering[-1]
    assert moment is not None
    return moment.parts


def kept(bytes_: int, made_again: int = 0) -> dict[str, Any]:
    none, full = Saved(replicated=bytes_), Saved(replicated=made_again)
    return {"activations": Activations(none=none, attention=none, selective=none, full=full)}


def whole(*, experts: int = 0, model: dict[str, Any] | None = None, repeat: int = 3) -> Facts:
    """Return a job in fp32 of a table, units that keep something, and a head that keeps more."""
    unit = [Parameters(trainable=UNIT)]
    if experts:
        unit.append(Parameters(trainable=experts, split=Split.EXPERT))
    return job(
        block(parameters=(Parameters(trainable=TABLE),), unit=False, name="table", **kept(7, 7)),
        block(parameters=tuple(unit), repeat=repeat, **kept(100, 10)),
        block(unit=False, name="head", **kept(1000)),
        optimizer=Optimizer.SGD,
        precision=Precision.FP32,
        stack={"fragmentation": 0.0, "context_bytes": 0},
        device=HOST,
        model=model or {},
    )


def fp32(**changes: Any) -> Plan:
    return sharded(1, precision=Precision.FP32, reshard_after_forward=False, **changes)


def test_the_last_unit_and_the_one_before_are_there_twice_where_none_reshards() -> None:
    given = whole()
    parts = last(given, fp32())
    assert parts["transient"] == 4 * (TABLE + 3 * UNIT + 2 * UNIT)
    # neither the last unit nor the head has run
    assert (parts["activations"], parts["gradients"]) == (7 + 2 * 100, 0)
    # of one that is made again its input is there
    assert last(given, fp32(recompute=Recompute.FULL))["activations"] == 7 + 3 * 10
    found = plan_memory(given, fp32())
    assert found.transient == parts["transient"]
    (rank,) = memory_by_phase(given, fp32())
    assert (rank.peak.stage, rank.peak.repeat, rank.peak.total) == (
        Stage.FORWARD,
        "gathered last",
        found.total,
    )


def test_before_an_only_unit_the_root_was_gathered() -> None:
    assert last(whole(repeat=1), fp32())["transient"] == 4 * (TABLE + UNIT + UNIT + TABLE)


def test_units_that_reshard_and_pipelines_have_no_such_moment() -> None:
    for changes in ({"reshard_after_forward": True}, {"pp": 2, "pp_schedule": PipelineSchedule.GPIPE}):
        chosen = sharded(1, **{"precision": Precision.FP32, "reshard_after_forward": False} | changes)
        ranks = one_plan(whole(), chosen).ranks
        assert [each for rank in ranks for each in rank.gathering if each] == []


@pytest.mark.parametrize(("number", "copies"), [(2, 1), (6, 1), (8, 0)])
def test_experts_that_ranks_do_not_divide_come_along_their_rows(number: int, copies: int) -> None:
    given = whole(experts=8000, model={"experts": number})
    unit = UNIT + 8000
    assert last(given, fp32())["transient"] == 4 * (TABLE + 3 * unit + 2 * unit + copies * 8000)


def test_gradients_of_the_micro_batch_before_stay() -> None:
    chosen = sharded(2, precision=Precision.FP32, reshard_after_forward=False)
    parts = last(whole(), chosen)
    assert parts["transient"] == 4 * (TABLE + 3 * UNIT + 2 * UNIT) + 4 * TABLE
    assert parts["gradients"] == 4 * (TABLE + 3 * UNIT) / 4


def test_in_columns_it_is_as_in_each_plan_alone() -> None:
    given = facts(device=HOST)
    several = [
        sharded(steps, **changes)
        for steps in (1, 2, 3)
        for changes in ({}, {"micro_batch_size": 3}, {"reshard_after_forward": False}, {"tp": 2})
    ]
    for each in (given, whole(), whole(experts=8000, model={"experts": 6})):
        check(each, several)


def check(given: Facts, several: list[Plan]) -> None:
    columns = Columns({**facts_columns(given), **plans_table(several)})
    found, totals = memory_columns(given, columns), memory_totals(given, columns)
    for row, each in enumerate(several):
        alone = plan_memory(given, each)
        assert [found[part][row] for part in PARTS] == [getattr(alone, part) for part in PARTS]
        assert abs(totals[row] - alone.total) <= len(PARTS)
