"""Muon's products by hand: five iterations of 4 m^2 n with the matrix and 2 m^3 with its Gram matrix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import GB, TERA, block, job, plan

from parastrat.assess import assess
from parastrat.case import Facts
from parastrat.cost.updates import update_bytes
from parastrat.model import Operator, OperatorKind, Parameters, Split
from parastrat.plan import Shard
from parastrat.workload import Optimizer, Precision

ROWS, COLUMNS = 40_000, 10_000
MATRIX = 5 * 4 * COLUMNS**2 * ROWS / TERA
GRAM = 5 * 2 * COLUMNS**3 / TERA


def orthogonalizing(*, rows: int = ROWS, split: Split = Split.TENSOR, **changes: Any) -> Facts:
    """Return a job of two layers of one matrix each, none of whose memory takes time."""
    sides = {"m": 1, "n": rows, "k": ROWS * COLUMNS // rows}
    expert = split is Split.EXPERT
    kind = OperatorKind.GROUPED_MATMUL if expert else OperatorKind.MATMUL
    product = Operator(kind=kind, flops=0.0, bytes=0.0, split=split, **sides)
    parts = (Parameters(trainable=ROWS * COLUMNS * (8 if expert else 1), split=split),)
    one = block(product, repeat=2, parameters=parts, unit=True)
    memory = {"memory_bytes_per_s": 1e30} | changes.pop("device", {})
    model = {"model": {"experts": 8}} if expert else {}
    return job(one, **({"optimizer": Optimizer.MUON, "device": memory} | model | changes))


def optimizer_s(facts: Facts, **fields: Any) -> float:
    return assess(facts, plan(**fields)).estimate.time.optimizer


def test_a_device_alone_makes_all_products() -> None:
    assert optimizer_s(orthogonalizing()) == pytest.approx(2 * (MATRIX + GRAM))
    assert optimizer_s(orthogonalizing(), dp_replicate=8) == pytest.approx(2 * (MATRIX + GRAM))
    assert optimizer_s(orthogonalizing(optimizer=Optimizer.ADAMW)) == pytest.approx(0)


def test_zero_1_gives_each_matrix_to_one_rank() -> None:
    shared = optimizer_s(orthogonalizing(), dp_shard=8, shard=Shard.OPTIMIZER)
    assert shared == pytest.approx(2 * (MATRIX + GRAM) / 8)


@pytest.mark.parametrize(
    "fields", [{"dp_shard": 4, "shard": Shard.PARAMETERS}, {"tp": 4}, {"cp": 4, "shard": Shard.PARAMETERS}]
)
def test_ranks_that_share_a_matrix_sum_gram_matrices(fields: dict[str, Any]) -> None:
    # two all-reduces of bf16, which move their buffer one and a half times over 4 ranks
    sums = 5 * 2 * 1.5 * 2 * COLUMNS**2 / (100 * GB)
    assert optimizer_s(orthogonalizing(), **fields) == pytest.approx(2 * (MATRIX / 4 + GRAM + sums))
    # and with no more rows than columns the matrix is gathered
    gathered = 5 * 0.75 * 2 * ROWS * COLUMNS / (100 * GB)
    wide = optimizer_s(orthogonalizing(rows=COLUMNS), **fields)
    assert wide == pytest.approx(2 * (MATRIX / 4 + GRAM + sums + gathered))


def test_experts_are_whole_on_their_ranks() -> None:
    facts = orthogonalizing(split=Split.EXPERT)
    alone = 2 * 8 * (MATRIX + GRAM)
    assert optimizer_s(facts) == pytest.approx(alone)
    fields = {"dp_shard": 8, "shard": Shard.PARAMETERS}
    assert optimizer_s(facts, **fields) == pytest.approx(alone / 8)
    assert optimizer_s(facts, ep=4, **fields) == pytest.approx(alone / 8)


def test_launches_of_small_matrices() -> None:
    small = orthogonalizing(device={"launch_s": 1e3, "memory_bytes_per_s": 1e30})
    assert optimizer_s(small) == pytest.approx(2 * 23 * 1e3, rel=0.01)


@pytest.mark.parametrize(
    ("optimizer", "moved"),
    [
        # tensors of fp32: one kernel, or one for each operation
        (Optimizer.ADAMW, 7 * 4),
        (Optimizer.SGD_MOMENTUM, 8 * 4),
        (Optimizer.SGD, 3 * 4),
        # a byte of each of two states, with their scales
        (Optimizer.ADAMW_8BIT, 3 * 4 + 2 * 2 * (1 + 4 / 256)),
    ],
)
def test_bytes_of_an_update(optimizer: Optimizer, moved: float) -> None:
    facts = job(optimizer=optimizer, precision=Precision.FP32)
    assert update_bytes(facts) == (pytest.approx(moved), 0)


def test_bytes_of_an_update_by_operation() -> None:
    adamw = job(precision=Precision.FP32, stack={"steps_by_operation": True})
    assert update_bytes(adamw) == (pytest.approx(20 * 4), 0)


def test_muon_moves_one_state_of_matrices() -> None:
    facts = job(precision=Precision.FP32, optimizer=Optimizer.MUON)
    moved, spared = update_bytes(facts)
    assert moved - spared == pytest.approx(13.5 * 4)
    one = replace(facts, stack=replace(facts.stack, steps_in_one_kernel=True))
    assert update_bytes(one) == (7 * 4, 2 * 4)
