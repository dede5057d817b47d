"""Rates of a device by number format."""

from __future__ import annotations

import pytest

from parastrat.cost.rates import sustained_flops_per_s
from parastrat.profiles import load_hardware
from parastrat.workload import Precision


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.BF16_MIXED])
def test_bf16_that_is_emulated_runs_in_fp32(precision: Precision) -> None:
    """It had the rate of fp16's matrix units, beside a finding that says fp32 or below."""
    volta = load_hardware("dgx-1v").device
    assert sustained_flops_per_s(volta, precision) == volta.sustained.fp32
    assert sustained_flops_per_s(volta, Precision.FP16_MIXED) == volta.sustained.fp16
