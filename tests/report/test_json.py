from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from report.answers import HEADS, LOGITS, five_way, fsdp2, nothing, pipelined, rooms, taken

from parastrat.plan import Mesh, Plan
from parastrat.report.json import comparison_json, estimate_json, recommendation_json
from parastrat.units import GIB

COMMON = {
    "schema",
    "model",
    "hardware",
    "workload",
    "stack",
    "plan",
    "estimate",
    "verdict",
    "fits",
    "findings",
}


def test_estimate_has_the_documented_keys() -> None:
    table = estimate_json(fsdp2(), (LOGITS,))
    assert set(table) == COMMON
    whole = estimate_json(fsdp2(), (LOGITS,), rooms())
    assert set(whole) == COMMON | {"memory_phases", "host_memory"}
    assert whole["host_memory"]["total"] == (16 + 64 + 32 + 6) * GIB
    assert estimate_json(fsdp2(), (), replace(rooms(), host=None))["host_memory"] is None
    assert table["schema"] == "parastrat.estimate/1"
    assert table["stack"] == "torch"
    assert table["findings"] == [
        {
            "code": "PS103",
            "severity": "info",
            "message": LOGITS.message,
            "fix": LOGITS.fix,
            "url": LOGITS.url,
        }
    ]
    assert (table["verdict"], table["fits"]) == ("fits", True)


def test_memory_by_phase_marks_one_peak_a_rank() -> None:
    first, last = estimate_json(pipelined(), (), rooms())["memory_phases"]
    assert (first["rank"], first["micro_batches_in_flight"], first["blocks"]) == (0, 4.0, {"layer": 6})
    assert [phase["stage"] for phase in first["phases"] if phase["peak"]] == ["backward"]
    assert last["phases"][2]["total"] == 30 * GIB
    for phase in first["phases"]:
        assert phase["total"] == sum(phase[part] for part in fsdp2().estimate.memory.parts)


def test_the_plan_is_flat_and_complete() -> None:
    plan = estimate_json(fsdp2(), ())["plan"]
    expected = (
        {field.name for field in fields(Plan)} | {field.name for field in fields(Mesh)} | {"strategy"}
    )
    assert set(plan) == expected - {"mesh"}
    assert plan["strategy"] == "fsdp2"


def test_the_model_is_told_without_its_blocks() -> None:
    assert set(estimate_json(fsdp2(), ())["model"]) == {
        "ref",
        "name",
        "family",
        "parameters",
        "active_parameters",
        "layers",
        "sequence_length",
        "caveats",
        "source",
    }


def test_parts_add_up_to_their_totals() -> None:
    made = estimate_json(fsdp2(), ())["estimate"]
    memory, time = made["memory"], made["time"]
    parts = ("parameters", "gradients", "optimizer", "activations", "transient", "overhead")
    assert sum(memory[part] for part in parts) == memory["total"]
    assert set(memory) == {*parts, "total", "capacity", "margin"}
    bounds = ("step", "step_low", "step_high")
    assert sum(value for key, value in time.items() if key not in bounds) == pytest.approx(time["step"])
    assert set(made) == {"memory", "time", "tokens_per_s_per_gpu", "model_tflops_per_gpu", "mfu"}


def test_recommend_adds_what_was_left() -> None:
    table = recommendation_json(taken())
    assert COMMON | {"rungs", "alternatives", "rejected", "nearest_fit"} <= set(table)
    assert table["schema"] == "parastrat.recommendation/1"
    taken_rung = table["rungs"][2]
    assert set(taken_rung) == {"strategy", "rung", "status", "reason", "plan", "estimate"}
    assert (taken_rung["status"], taken_rung["plan"]["dp_shard"]) == ("taken", 16)
    assert table["rungs"][0]["plan"] is None
    assert table["alternatives"][0]["plan"]["strategy"] == "fsdp2+tp+pp"
    assert table["rejected"][0]["count"] == 1200
    assert table["may_be_a_tie"] is True


def test_no_plan_is_null() -> None:
    table = recommendation_json(nothing())
    assert (table["plan"], table["estimate"]) == (None, None)
    assert (table["verdict"], table["fits"]) == ("does_not_fit", False)
    nearest, _ = table["nearest_fit"]
    assert set(nearest) == {"changes", "speed", "plan", "estimate"}
    assert nearest["changes"] == ["4 nodes instead of 2"]
    assert nearest["speed"] == {"tokens_per_s": 1.76, "tokens_per_s_per_gpu": 0.88}
    assert table["memory_aside"]["plan"]["strategy"] == "ddp"


def test_what_does_not_fit_says_so() -> None:
    small = replace(five_way().estimate.memory, capacity=1)
    made = replace(five_way(), estimate=replace(five_way().estimate, memory=small))
    table = estimate_json(made, (HEADS,))
    assert (table["verdict"], table["fits"]) == ("does_not_fit", False)


def test_all_of_it_is_json() -> None:
    table = comparison_json(pipelined(), (LOGITS,), taken())
    assert json.loads(json.dumps(table, allow_nan=False)) == table
    assert table["recommended"]["plan"]["strategy"] == "fsdp2"
