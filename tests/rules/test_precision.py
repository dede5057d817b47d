from __future__ import annotations

import pytest
from builders import codes

from parastrat.hardware import Rates
from parastrat.workload import Precision


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.BF16_MIXED])
def test_bf16_is_emulated(precision: Precision) -> None:
    assert "PS410" in codes(precision=precision, bf16_native=False)
    assert "PS410" not in codes(precision=precision, bf16_native=True)
    assert "PS410" not in codes(precision=Precision.FP16_MIXED, bf16_native=False)


def test_fp8_is_missing() -> None:
    assert "PS411" in codes(precision=Precision.FP8, peak=Rates(bf16=1e14))
    assert "PS411" not in codes(precision=Precision.FP8)
    assert "PS411" not in codes(precision=Precision.BF16, peak=Rates(bf16=1e14))


def test_fp16_needs_scaling() -> None:
    assert "PS412" in codes(precision=Precision.FP16_MIXED)
    assert "PS412" not in codes(precision=Precision.BF16_MIXED)


def test_bf16_weights_lose_updates() -> None:
    assert "PS413" in codes(precision=Precision.BF16)
    assert "PS413" not in codes(precision=Precision.BF16_MIXED)


def test_plan_changes_the_precision() -> None:
    assert "PS414" in codes(precision=Precision.BF16, workload_precision=Precision.BF16_MIXED)
    assert "PS414" not in codes(precision=Precision.BF16, workload_precision=Precision.BF16)
