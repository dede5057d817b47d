"""What Muon updates: weights of products in repeated blocks, and what it makes for one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from jobs import block, job, row

from parastrat.case import Facts
from parastrat.model import Block, Operator, OperatorKind, Parameters, Split
from parastrat.plan import Shard
from parastrat.ranks import pipeline_ranks
from parastrat.ranks.division import division
from parastrat.ranks.matrices import Matrices, Matrix, matrices_of, muon_matrices, updated_matrices
from parastrat.workload import Optimizer


def product(rows: int, columns: int, **changes: Any) -> Operator:
    fields = {"kind": OperatorKind.MATMUL, "flops": 2.0, "bytes": 0.0, "m": 1, "n": rows, "k": columns}
    return Operator(**(fields | changes))


def layer(*operators: Operator, trainable: int = 10**6, split: Split = Split.REPLICATED) -> Block:
    parts = (Parameters(trainable=trainable, split=split),)
    return block(*operators, repeat=3, parameters=parts, unit=True)


def facts(*blocks: Block, optimizer: Optimizer = Optimizer.MUON, **changes: Any) -> Facts:
    return job(*blocks, optimizer=optimizer, **changes)


def found(*blocks: Block, **changes: Any) -> Matrices:
    matrices = muon_matrices(facts(*blocks, **changes))
    assert matrices is not None
    return matrices


def test_weights_of_products_in_repeated_blocks_are_matrices() -> None:
    one = layer(product(20, 30, count=2), product(40, 10))
    assert matrices_of(one, 1) == (
        Matrix(rows=20, columns=30, count=2, split=Split.REPLICATED),
        Matrix(rows=40, columns=10, count=1, split=Split.REPLICATED),
    )
    assert matrices_of(replace(one, unit=False), 1) == ()


def test_what_is_no_weight_that_is_trained_is_none() -> None:
    assert matrices_of(layer(product(20, 30, weighted=False)), 1) == ()
    assert matrices_of(layer(product(20, 30, kind=OperatorKind.CONVOLUTION)), 1) == ()
    assert matrices_of(layer(product(20, 30), trainable=599), 1) == ()
    # read twice
    assert len(matrices_of(layer(product(20, 30), product(20, 30), trainable=1000), 1)) == 1


def test_experts_are_matrices_each() -> None:
    grouped = product(20, 30, kind=OperatorKind.GROUPED_MATMUL, split=Split.EXPERT)
    (one,) = matrices_of(layer(grouped, split=Split.EXPERT), 4)
    assert (one.count, one.elements, one.square) == (4, 600, 400)


def test_other_optimizers_and_models_without_products_have_none() -> None:
    assert muon_matrices(facts(layer(product(20, 30)), optimizer=Optimizer.ADAMW)) is None
    assert muon_matrices(facts(layer())) is None


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({}, 1),
        ({"dp_replicate": 8}, 1),
        ({"tp": 2}, 2),
        ({"dp_shard": 4, "shard": Shard.PARAMETERS, "tp": 2}, 8),
        ({"dp_shard": 8, "shard": Shard.OPTIMIZER}, 8),
        ({"pp": 3}, 3),
    ],
)
def test_elements_that_a_rank_updates(fields: dict[str, Any], share: float) -> None:
    made = facts(layer(product(20, 30, split=Split.TENSOR), split=Split.TENSOR))
    ranks = pipeline_ranks(made.model, fields.get("pp", 1), 1)
    assert max(updated_matrices(made, row(**fields), rank) for rank in ranks) == 3 * 600 / share


def test_temporaries_are_those_of_the_largest() -> None:
    matrices = found(layer(product(20, 30), product(50, 10)))
    assert matrices.largest == (600, 400)
    d = division(row())
    # those of ranks that share it are held against torch's in tests/runtime/test_muon.py
    assert matrices.temporaries(d, sharded=False) == 12 * 600 + 4 * 400
