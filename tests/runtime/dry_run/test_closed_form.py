"""The closed form of memory beside dry runs: a few of the combinations of ``benchmarks/dry_runs.py``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from parastrat.plan import Recompute

pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
CASES = [
    ("llama-3.2-1b", "single", Recompute.NONE),
    ("llama-3.2-1b", "ddp, 2 micro-batches", Recompute.SELECTIVE),
    ("llama-3.2-1b", "fsdp2", Recompute.ATTENTION),
    ("llama-2-13b", "hsdp", Recompute.NONE),
    ("llama-3.2-1b", "tp 8, sp, loss", Recompute.NONE),
    ("llama-2-7b", "fsdp2 x tp 8, sp, loss", Recompute.FULL),
    ("llama-2-7b", "pp 4, 1F1B", Recompute.NONE),
    ("llama-3.2-1b", "pp 2 x fsdp2 x tp 4, sp", Recompute.FULL),
    ("qwen2.5-7b", "tp 2", Recompute.NONE),
]


@pytest.fixture(scope="module")
def benchmark_module() -> Any:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield runpy.run_path(str(BENCHMARKS / "dry_runs.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.mark.parametrize(("model", "way", "recompute"), CASES)
def test_estimates_are_within_three_percent_of_dry_runs(
    benchmark_module: Any, model: str, way: str, recompute: Recompute
) -> None:
    each = benchmark_module["Combination"](model=model, way=way, recompute=recompute)
    found = benchmark_module["compared"](each)
    assert found.dry_run is not None, found
    assert abs(found.error) <= 0.03, found
