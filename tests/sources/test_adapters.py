"""Adapters beside frozen weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from jobs import job, row

from parastrat.cost.compute import block_times
from parastrat.model import OperatorKind
from parastrat.sources import load_source
from parastrat.sources.adapters import with_adapters
from parastrat.stack import Kernels
from parastrat.workload import Precision

if TYPE_CHECKING:
    from parastrat.model import ModelSpec


def llama(name: str = "llama-3-8b") -> ModelSpec:
    return load_source(name).at(4096, Precision.BF16_MIXED, Kernels.FUSED)


def test_what_is_trained_is_two_matrices_beside_each_of_queries_keys_and_values() -> None:
    whole, adapted = llama(), with_adapters(llama(), 8)
    # of 4,096 inputs: 4,096 queries, 1,024 keys and as many values
    assert adapted.trainable_parameters == 32 * 8 * (8192 + 2 * 5120)
    assert adapted.parameters == whole.parameters + adapted.trainable_parameters
    assert sum(group.frozen * block.repeat for block in adapted.blocks for group in block.parameters) == (
        whole.parameters
    )


def test_frozen_weights_have_no_gradients_to_compute() -> None:
    facts, plan = job(*llama().blocks), row()
    whole = block_times(facts, llama().blocks, plan)
    adapted = block_times(facts, with_adapters(llama(), 8).blocks, plan)
    assert adapted.matmul_forward == pytest.approx(whole.matmul_forward)
    assert adapted.matmul_backward == pytest.approx(whole.matmul_backward / 2)


def test_adapters_read_write_and_add() -> None:
    (_, layer, _), (_, adapted, _) = llama().blocks, with_adapters(llama(), 8).blocks
    added = adapted.operators[len(layer.operators) :]
    # queries, and keys and values together; each of two products and an addition
    assert [each.count for each in added] == [3, 6]
    moved = 2 * 4096 * (4096 + 4 * 4096 + 2 * 8)
    assert added[0].bytes * added[0].count == pytest.approx(moved)
    assert added[0].flops * added[0].count == pytest.approx(2 * 4096 * 8 * 8192)


def test_ends_without_attention_have_none() -> None:
    before, after = llama().blocks[-1], with_adapters(llama(), 8).blocks[-1]
    assert len(after.operators) == len(before.operators)
    assert not any(each.weighted for each in after.operators if each.kind is OperatorKind.MATMUL)
    assert sum(group.trainable for group in after.parameters) == 0
