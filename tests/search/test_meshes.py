"""Every mesh of a space stands there once, and what numbers them tells apart what it says."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from parastrat.case import Facts
from parastrat.columns import Columns
from parastrat.cost import Heaviest, least_weights_s
from parastrat.distinct import NUMBERED
from parastrat.profiles import load_hardware, load_stack
from parastrat.ranks import block_kinds
from parastrat.ranks.heaviest import heavy_ranks
from parastrat.rules import rejection_masks
from parastrat.search.meshes import meshes_of
from parastrat.search.rows import AXES, Constraints
from parastrat.sources import load_source
from parastrat.workload import Optimizer, Precision, Workload

SPACES = [
    ("mixtral-8x7b", "summit:4", Constraints()),
    ("mixtral-8x7b", "summit:4", Constraints(ep=3)),
    ("gpt-oss-20b", "dgx-h100:3", Constraints(dp_replicate=2)),
    ("llama-3.1-8b", "dgx-h100:2", Constraints(tp=4)),
    ("llama-3.1-8b", "dgx-h100:1", Constraints(plain_loop=True)),
]
#: whose degrees of tp or cp rules reject, whatever the other degrees are
DIVIDED = [
    ("mixtral-8x7b", "summit:8", Constraints()),
    ("nemotron-3-nano", "dgx-h100:8", Constraints()),
]

NUMBERS = ("width", "layout", "sharding")


def facts(model: str, on: str) -> Facts:
    source, stack = load_source(model), load_stack("torch")
    assert source is not None
    return Facts(
        model=source.at(2048, Precision.BF16_MIXED, stack.kernels),
        hardware=load_hardware(on),
        workload=Workload(
            global_batch_size=64,
            sequence_length=2048,
            optimizer=Optimizer.ADAMW,
            precision=Precision.BF16_MIXED,
        ),
        stack=stack,
    )


def rows_of(columns: Columns, names: Any) -> list[tuple[int, ...]]:
    read = [np.broadcast_to(getattr(columns, name), len(columns.pp)).tolist() for name in names]
    return list(zip(*read, strict=True))


@pytest.mark.parametrize(
    ("model", "sharing"), [("vit-l-16", set()), ("dit-xl-2", {2, 4, 8}), ("llama-3.1-8b", {2, 4, 8})]
)
def test_positions_that_cannot_be_padded_are_shared_evenly_or_not(model: str, sharing: set[int]) -> None:
    source = load_source(model)
    assert source is not None
    length = 2048 if source.has_tokens else None
    given = facts("llama-3.1-8b", "dgx-h100:1")
    given = replace(given, model=source.at(length, Precision.BF16_MIXED, given.stack.kernels))
    meshes = meshes_of(given, Constraints())
    assert set(meshes.tp.tolist()) >= {1, 2, 4, 8}
    assert set(meshes.tp[meshes.sequence_parallel].tolist()) == sharing


@pytest.mark.parametrize(("model", "on", "fixed"), SPACES)
def test_a_space_has_every_mesh_over_all_devices_once(model: str, on: str, fixed: Constraints) -> None:
    given = facts(model, on)
    meshes, devices = meshes_of(given, fixed), given.hardware.world_size
    found = rows_of(meshes, AXES)
    assert len(found) == len(set(found))
    assert {pp * replicas * shards * cp * tp for pp, replicas, shards, cp, tp, _ in found} == {devices}
    each = (sorted(set(degrees)) for degrees in zip(*found, strict=True))
    possible = {
        (pp, replicas, shards, cp, tp, ep)
        for pp, replicas, shards, cp, tp, ep in product(*each)
        if pp * replicas * shards * cp * tp == devices
        and (fixed.ep is not None or (shards * cp * tp) % ep == 0)
    }
    assert set(found) == possible


@pytest.mark.parametrize(("model", "on", "fixed"), SPACES)
@pytest.mark.parametrize("number", NUMBERS)
def test_meshes_have_a_number_in_common_where_they_have_what_it_counts(
    model: str, on: str, fixed: Constraints, number: str
) -> None:
    meshes = meshes_of(facts(model, on), fixed)
    named = meshes
    if number == "sharding":
        # which knows cp as further shards alone
        named = meshes.joined({"dp_shard": meshes.dp_shard * meshes.cp, "cp": 1})
    own, values = getattr(meshes, number).tolist(), rows_of(named, NUMBERED[number])
    assert len(set(zip(own, values, strict=True))) == len(set(own)) == len(set(values))


@pytest.mark.parametrize("model", ["gpt-oss-20b", "llama-3.1-8b"])
def test_the_weights_of_meshes_take_what_they_do_alone(model: str) -> None:
    given = facts(model, "dgx-h100:8")
    meshes = meshes_of(given, Constraints())
    pipelines = meshes.joined({"pp_schedule": -1, "virtual_stages": 1})
    kinds = len(block_kinds(given.model).blocks)
    heaviest = Heaviest(facts=given, ranks=heavy_ranks(given.model, pipelines, np.ones(kinds)))
    together = least_weights_s(heaviest, meshes)
    assert len(set(meshes.sharding.tolist())) < len(meshes.pp)
    for row in range(0, len(meshes.pp), 17):
        alone = least_weights_s(heaviest, meshes.at(np.array([row])))
        assert {part: each[row] for part, each in together.items()} == {
            part: each[0] for part, each in alone.items()
        }


def test_stages_of_one_device_leave_no_mesh() -> None:
    meshes = meshes_of(facts("llama-3.1-8b", "h100-sxm5x1:1"), Constraints(virtual_stages=2))
    assert {len(getattr(meshes, name)) for name in (*AXES, *NUMBERS)} == {0}
    assert {getattr(meshes, name).dtype for name in (*AXES, *NUMBERS)} == {np.dtype(np.int64)}


@pytest.mark.parametrize(("model", "on", "fixed"), [*SPACES, *DIVIDED])
def test_meshes_that_are_asked_for_alone_are_those_that_rules_leave_and_others(
    model: str, on: str, fixed: Constraints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parastrat.search.meshes._made", {})
    job = facts(model, on)
    few, every = meshes_of(job, fixed, alone=True), meshes_of(job, fixed)
    rows = list(zip(*(getattr(every, axis).tolist() for axis in AXES), strict=True))
    kept = set(zip(*(getattr(few, axis).tolist() for axis in AXES), strict=True))
    own = every.at(np.flatnonzero([row in kept for row in rows]))
    assert 0 < len(few.pp) <= len(every.pp)
    for name in (*AXES, "dp", "world_size", "shard", "rung", "strategy"):
        assert getattr(few, name).tolist() == getattr(own, name).tolist()
    # each of the others is rejected
    rejected = job.workload.global_batch_size % every.dp != 0
    for _, mask in rejection_masks(every):
        rejected = rejected | mask
    assert all(rejected[[row not in kept for row in rows]])
    # what was made before is taken as it is
    again = meshes_of(job, fixed, alone=True).pp
    assert again is few.pp or again is every.pp


@pytest.mark.parametrize(("model", "on", "fixed"), DIVIDED)
def test_degrees_that_rules_reject_alone_are_left_out(model: str, on: str, fixed: Constraints) -> None:
    meshes = meshes_of(facts(model, on), fixed, alone=True)
    assert 2 * len(meshes.pp) < len(meshes_of(facts(model, on), fixed).pp)
