"""Sequences that are packed from shorter samples."""

from __future__ import annotations

import pytest
from jobs import job, row

from parastrat.cost.compute import block_times
from parastrat.sources import load_source
from parastrat.sources.packed import with_packed
from parastrat.stack import Kernels
from parastrat.workload import Precision


def test_attention_reads_one_sample_and_nothing_else_changes() -> None:
    whole = load_source("llama-3-8b").at(4096, Precision.BF16_MIXED, Kernels.FUSED)
    packed = with_packed(whole, 1 / 16)
    facts, plan = job(*whole.blocks), row()
    before, after = (block_times(facts, model.blocks, plan) for model in (whole, packed))
    assert after.attention_forward == pytest.approx(before.attention_forward / 16)
    assert after.matmul_backward == pytest.approx(before.matmul_backward)
    assert after.traffic_forward == pytest.approx(before.traffic_forward)
    assert packed.parameters == whole.parameters
