"""What bounds leave out is never missed: the search against every plan of its space."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from parastrat.case import Facts
from parastrat.columns import Columns, code_of
from parastrat.cost import time_columns, time_floor
from parastrat.memory import PARTS, memory_columns, memory_totals
from parastrat.memory.floors import memory_floor, mesh_floor
from parastrat.memory.quick import quick_floor
from parastrat.plan import Offload, PipelineSchedule, Recompute
from parastrat.profiles import load_hardware, load_stack, stack_names
from parastrat.rules import rejection_masks
from parastrat.search import Constraints, find_plan
from parastrat.search.best_first import First, visit
from parastrat.search.bounded import searched
from parastrat.search.fastest import able_space, all_rows, fastest_plan, least_needed
from parastrat.search.obeying import obeying
from parastrat.search.rows import plan_at
from parastrat.search.space import every_plan, policies, recompute_columns, reshard_columns
from parastrat.search.survey import best, limits_of_strategies, survey
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

JOBS = [
    ("llama-3.1-8b", "dgx-h100:2", 64, 4096),
    ("llama-3.1-8b", "h100-sxm5x6:4", 96, 2048),
    ("mixtral-8x7b", "dgx-a100:2", 128, 4096),
    ("gpt2-xl", "8x-v100-pcie-32:4", 256, 1024),
    ("t5-large", "dgx-a100:1", 64, 512),
    ("llama-3.1-70b", "dgx-h100:4", 64, 4096),
    ("resnet-50", "dgx-h100:4", 256, None),
    ("gpt-oss-20b", "cpu:8", 64, 2048),
]


def facts(model: str, on: str, batch: int, length: int | None) -> Facts:
    source, stack = load_source(model), load_stack("torch")
    assert source is not None
    return Facts(
        model=source.at(length, Precision.BF16_MIXED, stack.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=batch,
            sequence_length=length,
            optimizer=Optimizer.ADAMW,
            precision=Precision.BF16_MIXED,
        ),
        stack=stack,
    )


def everything(job: Facts, fixed: Constraints) -> Columns:
    """Judge every plan of a space, without a bound; keep those that can run."""
    columns = every_plan(job, fixed)
    memory = memory_columns(job, columns)
    columns = columns.joined({f"memory_{part}": memory[part] for part in ("total", "margin", "capacity")})
    alive = np.ones(len(columns.pp), dtype=bool)
    for _, mask in rejection_masks(columns):
        alive &= np.logical_not(mask)
    columns = columns.at(np.flatnonzero(alive))
    return columns.joined(
        {
            "step": time_columns(job, columns)["step"],
            "roomy": columns.memory_total + columns.memory_margin <= columns.memory_capacity,
        }
    )


def strategies(columns: Columns) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row in np.flatnonzero(columns.roomy):
        rows.setdefault(plan_at(columns, int(row)).strategy, []).append(int(row))
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
@pytest.mark.parametrize(
    "fixed",
    [
        Constraints(),
        Constraints(recompute=Recompute.FULL, offload=Offload.OPTIMIZER),
        Constraints(pp_schedule=PipelineSchedule.INTERLEAVED),
        Constraints(virtual_stages=3),
    ],
)
def test_the_best_of_rungs_and_strategies_is_that_of_all_plans(job: Any, fixed: Constraints) -> None:
    given = facts(*job)
    columns, found = everything(given, fixed), survey(given, fixed)
    plans = [plan_at(columns, row) for row in range(len(columns.pp))]
    rungs = np.array([plan.rung for plan in plans], dtype=np.int64)
    for rung in range(6):
        rows = np.flatnonzero(rungs == rung)
        own = np.flatnonzero(found.columns.rung == rung)
        if any(columns.roomy[rows]):
            rows, own = rows[columns.roomy[rows]], own[found.columns.roomy[own]]
        assert bool(len(rows)) == bool(len(own)), rung
        if len(rows):
            assert found.plan(best(found.columns, own)) == plans[best(columns, rows)]
    expected = [plan_at(columns, best(columns, np.array(rows))) for rows in strategies(columns).values()]
    shown = [found.plan(best(found.columns, np.array(rows))) for rows in strategies(found.columns).values()]
    order = sorted(expected, key=lambda plan: columns.step[plans.index(plan)])
    assert all(plan in shown for plan in order[:8])
    able = np.flatnonzero(columns.roomy)
    able = able if len(able) else np.arange(len(plans))
    assert fastest_plan(given, fixed) == (plans[best(columns, able)] if len(able) else None)
    space = able_space(given, fixed)
    assert (space is not None and least_needed(all_rows(space)).fits) == bool(len(able))


def test_bounds_leave_most_plans_out() -> None:
    found = survey(facts("llama-3.1-8b", "dgx-h100:8", 512, 4096), Constraints())
    assert found.bounded > found.considered / 2
    left = sum(entry.count for entry in found.rejected)
    assert found.considered >= found.bounded + left + len(np.flatnonzero(found.columns.roomy))


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_no_plan_falls_below_the_floors_of_its_row(job: Any) -> None:
    given = facts(*job)
    columns = obeying(given, Constraints()).columns
    drawn = np.random.default_rng(0).choice(len(columns.pp), min(200, len(columns.pp)), replace=False)
    rows = columns.at(drawn)
    memory = memory_floor(given, rows, tuple(Recompute))
    plans = reshard_columns(rows.joined({"source": np.arange(len(drawn))}))
    before, of_meshes = np.zeros(len(drawn)), mesh_floor(given, rows)
    # nor is that of meshes far below the states that a rank holds
    assert (of_meshes > 0.3 * memory.min(axis=0)).any()
    for least, policy in zip(memory, Recompute, strict=True):
        options = recompute_columns(plans, {policy: np.arange(len(plans.pp))})
        step = time_floor(given, rows.joined({"recompute": np.full(len(drawn), code_of(policy))}))
        totals, steps = memory_columns(given, options)["total"], time_columns(given, options)["step"]
        assert (least[plans.source] <= totals * (1 + 1e-12)).all()
        assert (of_meshes[plans.source] <= totals * (1 + 1e-12)).all()
        apart = memory_totals(given, options) - totals
        # a byte for each part, and one where a sum of whole parts is a little more than whole
        assert 0 <= apart.min() <= apart.max() <= len(PARTS) + 1
        assert (step[plans.source] <= steps * (1 + 1e-12)).all()
        # not far below: without a pipeline the step's floor is a plan's
        exact = (plans.pp == 1) & ~plans.reshard_after_forward
        assert step[plans.source][exact] == pytest.approx(steps[exact])
        if policy in policies(Constraints()):
            # a floor of the first policy that may fit is one of those after it
            assert (before <= step * (1 + 1e-12)).all()
            before = step


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_no_row_falls_below_the_floors_of_its_mesh(job: Any) -> None:
    given = facts(*job)
    space = searched(given, Constraints(), obeying(given, Constraints()))
    meshes = np.arange(len(space.allowed.meshes.pp))
    rows = space.allowed.rows(meshes)

    def least(of_rows: Any, mesh: Any) -> Any:
        found = np.full(len(meshes), np.inf)
        np.minimum.at(found, mesh, of_rows)
        return found

    memory = least(space.with_floors(rows).memory.min(axis=0), rows.mesh)
    quick = space.least_rows(meshes)
    some = space.with_floors(quick.columns)
    assert len(some.columns.mesh) < len(rows.mesh)
    assert (quick.memory <= some.memory * (1 + 1e-12)).all()
    assert least(some.memory.min(axis=0), some.columns.mesh) == pytest.approx(memory, rel=1e-12)
    steps = least(space.steps(rows, np.zeros(len(rows.mesh), dtype=np.int64)), rows.mesh)
    of_meshes = space.steps_of_meshes(meshes)
    assert (of_meshes <= steps * (1 + 1e-12)).all()
    # not far below, but where a backward in two parts has a bubble that its launches make up for
    assert (of_meshes > 0.7 * steps).mean() > 0.75


def test_meshes_of_a_share_have_its_batches_in_common() -> None:
    given = facts("llama-3.1-8b", "dgx-h100:2", 96, 4096)
    allowed = obeying(given, Constraints())
    rows, batches = allowed.columns, allowed.batches
    assert len(rows.pp) == allowed.counts.sum() > len(batches.columns.pp)
    assert (rows.micro_batch_size * rows.gradient_accumulation_steps * rows.dp == 96).all()
    assert len(set(rows.place.tolist())) == len(rows.place)


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_what_a_plan_needs_does_not_hang_on_its_neighbours(job: Any) -> None:
    given = facts(*job)
    columns = obeying(given, Constraints()).columns
    rows = columns.at(
        np.random.default_rng(1).choice(len(columns.pp), min(250, len(columns.pp)), replace=False)
    )
    plans = recompute_columns(
        reshard_columns(rows), {Recompute.NONE: np.arange(len(reshard_columns(rows).pp))}
    )
    totals, floors = memory_columns(given, plans)["total"], memory_floor(given, rows, (Recompute.NONE,))[0]
    for row in range(0, len(plans.pp), 5):
        assert memory_columns(given, plans.at(np.array([row])))["total"][0] == totals[row]
    for row in range(0, len(rows.pp), 5):
        alone = memory_floor(given, rows.at(np.array([row])), (Recompute.NONE,))[0, 0]
        assert alone == pytest.approx(floors[row], rel=1e-12)


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_the_best_of_many_rows_are_those_of_rows_bounded_at_once(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = facts(*job)
    at_once, fastest = find_plan(given), fastest_plan(given, Constraints())
    monkeypatch.setattr("parastrat.search.visited._MANY", 8)
    monkeypatch.setattr("parastrat.search.visited._MESHES", First(of_each=5))
    monkeypatch.setattr("parastrat.search.visited._ROWS", First(of_each=5))
    monkeypatch.setattr("parastrat.search.best_first._FEW", 0)
    piece_by_piece = find_plan(given)
    assert piece_by_piece.rungs == at_once.rungs
    assert piece_by_piece.alternatives == at_once.alternatives
    assert fastest_plan(given, Constraints()) == fastest


@pytest.mark.parametrize("memory", [2**29, 2**31, 2**33])
@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {on}" for model, on, *_ in JOBS])
def test_meshes_that_do_not_fit_are_left_out_before_their_rows(
    job: Any, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = facts(*job)
    device = replace(given.hardware.device, usable_memory_bytes=memory)
    given = replace(given, hardware=replace(given.hardware, device=device))
    row_by_row, space = find_plan(given), able_space(given, Constraints())
    fits = space is not None and least_needed(all_rows(space)).fits
    assert fits == (fastest_plan(given, Constraints()) is not None)
    monkeypatch.setattr("parastrat.search.visited._MANY", 8)
    monkeypatch.setattr("parastrat.search.misfits._SEVERAL", 8)
    at_once = find_plan(given)
    assert at_once.rungs == row_by_row.rungs
    assert at_once.alternatives == row_by_row.alternatives
    assert at_once.nearest_fit == row_by_row.nearest_fit
    if row_by_row.chosen is None:
        counts = [{entry.code: entry.count for entry in each.rejected} for each in (at_once, row_by_row)]
        assert counts[0] == counts[1]


def test_a_strategy_matters_while_it_may_be_shown() -> None:
    rungs = np.array([3] * 9 + [5])
    limits = limits_of_strategies(np.arange(10), rungs)(np.array([*range(1, 10), 100.0]))
    # the best of its rung, or one of the eight fastest; a best plan is within 0.5 % of the fastest
    assert limits[0] == pytest.approx(1.005)
    assert limits[7] == pytest.approx(8 * 1.005)
    assert limits[8] == pytest.approx(8 * 1.005**2)
    assert limits[9] == pytest.approx(100 * 1.005)
    assert limits_of_strategies(np.arange(2), rungs[:2])(np.array([1.0, np.inf]))[1] == np.inf


def test_rows_are_visited_until_no_floor_is_below_what_was_found() -> None:
    draw = random.Random(0)  # noqa: S311 - the same draw each time
    for _ in range(20):
        floors = np.array([draw.random() for _ in range(3000)])
        values = floors * np.array([1 + draw.random() for _ in range(3000)])
        groups = np.array([draw.randrange(5) for _ in range(3000)])
        seen: list[int] = []

        def judge(rows: Any, values: Any = values, seen: list[int] = seen) -> Any:
            seen.extend(rows.tolist())
            return values[rows]

        visit(floors, groups, judge, lambda least: least)
        assert len(seen) == len(set(seen)) < 3000
        for group in range(5):
            assert min(values[groups == group]) in values[seen]


@pytest.mark.parametrize("groups", [1, 5])
def test_rows_that_are_not_next_are_visited_in_order_all_the_same(
    groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(groups)
    floors = draw.integers(0, 300, 3000) / 8
    group = draw.integers(0, groups, 3000)

    def visited() -> list[list[int]]:
        seen: list[list[int]] = []

        def judge(rows: Any) -> Any:
            seen.append(rows.tolist())
            return floors[rows] + 12

        visit(floors, group, judge, lambda least: least, first=First(of_each=30))
        return seen

    in_part = visited()
    monkeypatch.setattr("parastrat.search.best_first._MANY", 3000)
    assert in_part == visited()
    assert len(in_part) > 2


def test_every_row_is_visited_where_none_has_a_value() -> None:
    seen: list[int] = []

    def judge(rows: Any) -> Any:
        seen.extend(rows.tolist())
        return np.full(len(rows), np.inf)

    visit(np.zeros(2000), np.zeros(2000, dtype=np.int64), judge, lambda least: least)
    assert sorted(seen) == list(range(2000))


@pytest.mark.parametrize("stack", stack_names())
@pytest.mark.parametrize(
    ("model", "on"),
    [
        ("llama-3.1-8b", "dgx-h100:2"),
        ("gpt-oss-20b", "dgx-2:4"),
        ("nemotron-h-8b", "hls-gaudi2:3"),
        ("deepseek-v2-lite", "cpu:8"),
        ("bert-large", "8x-rtx-4090:1"),
        ("gpt3-1.3b", "summit:2"),
    ],
)
def test_no_floor_falls_below_one_that_is_found_sooner(stack: str, model: str, on: str) -> None:
    source, own = load_source(model), load_stack(stack)
    assert source is not None
    shares = []
    for precision, offload in zip(
        (Precision.BF16_MIXED, Precision.FP16_MIXED, Precision.FP32), Offload, strict=True
    ):
        given = facts(model, on, 96, 512)
        spec = source.at(512, precision, own.kernels)
        workload = replace(given.workload, precision=precision)
        given = replace(given, model=spec, workload=workload, stack=own)
        columns = obeying(given, Constraints(offload=offload)).columns
        many = len(columns.pp)
        if not many:
            # processors neither compute in fp16 nor offload
            continue
        rows = columns.at(np.random.default_rng(0).choice(many, min(300, many), replace=False))
        floors, sooner = (each(given, rows, tuple(Recompute)) for each in (memory_floor, quick_floor))
        closer = quick_floor(given, rows, tuple(Recompute), closer=True)
        assert (sooner <= closer).all()
        assert (closer <= floors * (1 + 1e-12)).all()
        shares += (sooner / floors).ravel().tolist()
    assert np.median(shares) > 0.6
